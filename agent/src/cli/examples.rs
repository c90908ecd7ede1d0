//! Examples below the help of commands whose own files have none. Lines fit 80 columns.

pub(super) const AT_ALL: &str = "\
Examples:
  idlewood grid create          make a grid of this machine and those that join
  idlewood run                  run the agent; or once: idlewood service install
  idlewood submit --program task.wasm --array 0-99 --wait -- {}
  idlewood bag get last --out results
  idlewood help submit          options of a command, and examples";

pub(super) const RUN: &str = "\
Examples:
  idlewood run                            on loopback, or as the settings say
  idlewood run --listen 0.0.0.0:4001      others of the grid reach this machine
  idlewood run --listen 0.0.0.0:4001 --bootstrap lab-pc:4001";

pub(super) const PAUSE: &str = "\
Examples:
  idlewood pause               until `idlewood resume`
  idlewood pause --for 1h";

pub(super) const GRID: &str = "\
Examples:
  idlewood grid create --name lab
  idlewood grid invite --role submitter --uses 20   a line for twenty machines
  idlewood grid join                                asks for the line
  idlewood grid revoke lab-pc";

pub(super) const CONFIG: &str = "\
Examples:
  idlewood config set owner.idle 10min
  idlewood config set owner.hours 22:00-07:00
  idlewood config describe owner.hours    what it means, and its values
  idlewood config unset owner.hours";

pub(super) const LIST: &str = "\
Examples:
  idlewood bag list --state open          all that are not over
  idlewood bag list --since 2h --limit 10";

pub(super) const GET: &str = "\
Examples:
  idlewood bag get                        all of the last bag, into results-ID
  idlewood bag get sweep --out results    again, to add what has come since
  idlewood bag get sweep --index 3,7-9 --out some";

pub(super) const RERUN: &str = "\
Examples:
  idlewood bag rerun sweep --failed
  idlewood bag rerun sweep --index 3,7-9";
