//! Tools: registered, called through their adapters, each call an execution with evidence of its own; reached from within
//! a cell by the bridge.

pub(crate) mod bridge;
pub(crate) mod cache;
pub(crate) mod call;
pub(crate) mod cells;
pub(crate) mod change;
pub(crate) mod contract;
pub(crate) mod golden;
pub(crate) mod injection;
pub(crate) mod register;
pub(crate) mod secret;
mod settle;
pub(crate) mod shelf;
mod speak;
mod tell;
