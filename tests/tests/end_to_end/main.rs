//! End to end: real agent processes on loopback, used through the command line alone.

mod bags;
mod bus;
mod crashes;
mod display;
mod downgrade;
mod dropper;
mod durability;
mod grids;
mod guide;
mod harness;
mod home;
mod json;
mod keepers;
mod mistakes;
mod native;
mod owner;
mod package;
mod places;
mod redteam;
mod shells;
mod sleep;
mod small;
mod small_outputs;
mod solver;
mod torture;
mod tree;
