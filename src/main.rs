use kube::CustomResourceExt;
fn main() {
    println!("{}", serde_json::to_string_pretty(&outbox_operator::api::OutboxRelay::crd()).unwrap());
    println!("{}", serde_json::to_string_pretty(&outbox_operator::api::DispatchPolicy::crd()).unwrap());
}
