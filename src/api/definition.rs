//! The definition of a custom resource as it is published.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

/// The definition of `K`. No field is nullable in it: the API server then drops a `null` before it looks further, so that
/// `replicas: null` means what a user who writes it means, unset. (A nullable one would be kept, and refused by the `scale`
/// subresource or by the list of an enum.)
pub fn definition<K: CustomResourceExt>() -> CustomResourceDefinition {
    let mut crd = K::crd();
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            drop_nullable(schema);
        }
    }
    crd
}

fn drop_nullable(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        drop_nullable(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(inner)) => drop_nullable(inner),
        Some(JSONSchemaPropsOrArray::Schemas(inner)) => inner.iter_mut().for_each(drop_nullable),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(inner)) = &mut schema.additional_properties {
        drop_nullable(inner);
    }
}
