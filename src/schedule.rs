//! kube-scheduler as a model.
