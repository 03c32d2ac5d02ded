//! The adapters against the real thing: a kube-apiserver over etcd where `KUBEBUILDER_ASSETS` names a
//! folder with both binaries, and moto as EC2.
//!
//! Neither can be had from the registry of crates, so that a machine without them runs none of this and
//! says so on stderr. The contributing notes tell where to get them.

mod cluster;
#[cfg(feature = "aws")]
mod account;
#[cfg(feature = "aws")]
mod moto;
mod plane;
