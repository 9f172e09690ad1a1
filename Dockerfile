# The image of the `outbox` binary: the binary, the libraries it is linked with, CA certificates and an unprivileged user.
# hack/image/rootfs collects them, here and for the image that the tests run, so what is tested is what is shipped.
# The version is that of rust-toolchain.toml; the file itself is not in the build context, so that rustup fetches nothing.
ARG RUST=1.95
FROM rust:${RUST}-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin outbox
RUN hack/image/rootfs target/release/outbox /rootfs

FROM scratch
COPY --from=build /rootfs/ /
# By number: runAsNonRoot can't check a name.
USER 65532:65532
ENTRYPOINT ["/outbox"]
