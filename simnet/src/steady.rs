//! `simnet reproduce steady`: max-min fair throughput of applications without an end whose tasks come from the root of a tree of machines that send to
//! one child at a time, as in Beaumont, Carter, Ferrante, Legrand, Marchal and Robert (2006, "Centralized versus distributed schedulers for multiple
//! bag-of-task applications").
//!
//! The optimum is a general solver's (`optimum`), with its periodic schedule. Beside it the paper's demand-driven heuristics, whose whole tasks
//! are simulated (`tasks`) and whose rates, where they have any, are computed (`bandwidth_centric`, `data_centric`), and idlewood's CG-WAVE (`waves`).

mod algorithm;
mod bandwidth_centric;
mod data_centric;
mod experiment;
mod optimum;
mod periodic;
mod platform;
mod policy;
mod published;
mod resource;
mod rows;
mod scale;
mod tasks;
mod waves;

pub use algorithm::Algorithm;
pub use experiment::Steady;
pub use platform::{Application, Machine, Platform};
pub use scale::Scale;
