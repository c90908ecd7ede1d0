//! Fair shares for bags without an end: the throughput that each gets where processors and links are limited, exact in
//! one wave up and down a tree (docs/adr/0043).
//!
//! An application k has tasks of a_k Mop and b_k bytes; c_k = b_k/a_k is its [ratio](Ratios). A machine does at most W Mop/s
//! and takes at most D bytes/s, an edge of the tree carries at most B bytes/s in each direction. Sought are rates of work u_k that maximise Σ ω_k·log u_k
//! (proportional fairness, as in Bertin, Hunold, Legrand and Touati 2013, eq. 10). Their algorithm adapts prices in hundreds of rounds. FOLD needs one:
//!
//! 1. **Up.** A subtree that no application enters from within says how much work it would do for each application if that were
//!    alone: its [`Absorption`], as many numbers as there are applications. A router adds up what its children say.
//! 2. **At the root** the best rates are computed from that alone ([`Core`]). Where applications enter inside of the tree, the paths
//!    between these places are the core.
//! 3. **Down.** Each router divides what comes among its children without loss ([`Absorption::divide`]), and whole tasks with
//!    [`whole_tasks`].
//!
//! Why K numbers are enough: let f(t) be the bytes/s that a part absorbs of an application with ratio t. The part can do work u_k of all
//! applications at once if and only if Σ_k u_k·min(c_k, t) ≤ f(t) for all t, by Strassen's theorem on the convex order. The left side bends at
//! the c_k only and f is concave, so that it is enough to ask at t = c_k.
//!
//! Where a machine sends to one child at a time, K numbers are not enough: its port and the bytes that reach it are limits of their own. Trees
//! of such machines, and max-min fairness, have column generation instead ([`Columns`], [`Curve`], docs/adr/0054), in some eight waves.
//!
//! Left out: announcing applications, what a leaf asks submitters for, and machines that take some applications only.

mod absorption;
mod core;
mod curve;
mod game;
mod optimum;
mod pricing;
mod quota;
mod ratios;
mod whole;

pub use absorption::Absorption;
pub use core::{Application, Core, CoreNode, Uplink};
pub use curve::{Curve, Division, Node, Point, SEGMENTS_MAX};
pub use pricing::{Columns, Mixture, Task};
pub use quota::{due_s, next_by_deficit, quota};
pub use ratios::{RatioError, Ratios};
pub use whole::whole_tasks;
