//! End to end: real agent processes on loopback, used through the command line alone.

mod bags;
mod bus;
mod crashes;
mod display;
mod dropper;
mod durability;
mod grids;
mod guide;
mod harness;
mod home;
mod keepers;
mod mistakes;
mod native;
mod orders;
mod owner;
mod places;
mod redteam;
mod sleep;
mod small;
mod small_outputs;
mod solver;
mod torture;
mod tree;
