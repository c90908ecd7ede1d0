//! Answers to the control API: what this machine knows, in the API's words; and the user's orders.

use idlewood_machine::policy::{Orders, Pause};
use idlewood_overlay::{Contact, Node, State, Time};
use idlewood_scheduler::{BagView, Closing};
use idlewood_trust::identity;
use idlewood_units::clock::{iso, iso_s, wall_now};
use jiff::Zoned;

use super::driver::Driver;
use crate::handle::{Command, Refusal, Reply, answer};
use crate::output;
use crate::reasons;

impl Driver {
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::Status(reply) => answer(reply, Ok(self.status())),
            Command::Peers(reply) => answer(reply, Ok(self.peers())),
            Command::Bags(reply) => answer(reply, Ok(self.bags())),
            Command::Bag(id, reply) => answer(reply, self.find(&id).and_then(|bag| self.bag_detail(bag))),
            Command::Results(id, page, reply) => match self.find(&id) {
                Ok(bag) => self.results(bag.bag.id, page, reply),
                Err(refusal) => answer(reply, Err(refusal)),
            },
            Command::Output(id, index, reply) => match self.find(&id) {
                Ok(bag) => self.output(bag.bag.id, index, reply),
                Err(refusal) => answer(reply, Err(refusal)),
            },
            Command::Receipts(id, reply) => match self.find(&id) {
                Ok(bag) => self.receipts(bag.bag.id, reply),
                Err(refusal) => answer(reply, Err(refusal)),
            },
            Command::Submit(request, reply) => self.submit(*request, reply),
            Command::Cancel(id, reply) => self.cancel(&id, reply),
            Command::Rerun(id, tasks, reply) => self.rerun(&id, tasks, reply),
            Command::Ticket(id, results, reply) => self.ticket(&id, results, reply),
            Command::Remove(id, reply) => self.remove(&id, reply),
            Command::Pause(for_, reply) => {
                let pause = Pause { until: for_.map(|for_| self.shared.clock.now() + for_) };
                self.order_and_answer(Orders { pause: Some(pause), ..self.machine.owner().orders() }, reply);
            }
            Command::Resume(reply) => self.order_and_answer(Orders::default(), reply),
            Command::Finish(reply) => {
                self.order_and_answer(Orders { finish: true, ..self.machine.owner().orders() }, reply);
            }
        }
    }

    fn order_and_answer(&mut self, orders: Orders, reply: Reply<idlewood_api::Status>) {
        self.order(orders);
        answer(reply, Ok(self.status()));
    }

    // ---- this machine ----

    fn wall(&self, time: Time) -> String {
        iso(wall_now() - self.shared.clock.now().since(time))
    }

    fn disbelieved(&self) -> idlewood_api::Disbelieved {
        let tree = self.peer().overlay_view().counters();
        idlewood_api::Disbelieved {
            forged_sender: tree.forged_sender,
            malformed: tree.malformed + tree.oversized,
            stale_life: tree.stale_life,
            links_refused: tree.links_refused,
            differences_refused: tree.differences_refused,
            said_dead: tree.risen + tree.incarnations_refused,
        }
    }

    fn status(&self) -> idlewood_api::Status {
        let owner = self.machine.owner();
        let overlay = self.peer().overlay_view();
        let platform = self.peer().platform();
        let counters = self.shared.net.counters();
        let running: Vec<idlewood_api::RunningTask> = self
            .peer()
            .running()
            .into_iter()
            .map(|running| idlewood_api::RunningTask {
                place: running.place,
                bag: hex::encode(running.task.bag.0),
                index: running.task.index,
                active_s: running.active.as_secs_f64(),
                frozen: running.frozen,
            })
            .collect();
        let judgement = owner.judgement();
        let now = self.shared.clock.now();
        let (settings, facts) = (self.shared.settings.get(), self.owner.facts());
        let change = reasons::what_would_change(judgement, now, &Zoned::now(), settings, &facts, owner.orders());
        let changed = self.activity.since.max(judgement.since);
        let (activity, since) = match (judgement.cpu_percent, running.is_empty()) {
            (0, _) => ("suspended", judgement.since),
            (_, true) => ("idle", changed),
            (_, false) => ("working", changed),
        };
        // Without a reason nothing holds it up but a lack of work.
        let until = change.or_else(|| running.is_empty().then(|| "work arrives".to_owned()));
        let held = self.peer().held().into_iter().map(|held| idlewood_api::Held {
            bag: hex::encode(held.bag.0),
            waiting: held.waiting,
            running: held.running,
            unacknowledged: held.unacknowledged,
            times_declared: held.times_declared,
        });
        idlewood_api::Status {
            peer: identity::to_libp2p(self.peer().me().peer).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            membership: membership(overlay.state()).to_owned(),
            // One machine of a grid may refuse whom the others let in.
            refused: (overlay.state() != State::Member)
                .then(|| self.shared.gate().refused_as())
                .flatten()
                .map(|refused| refused.to_string()),
            listen: vec![self.presence.listen().to_string()],
            activity: activity.to_owned(),
            reason: judgement.reason.as_ref().map(reasons::text),
            reason_code: judgement.reason.as_ref().map(|reason| reason.code().to_owned()),
            since: self.wall(since),
            until,
            finishing: owner.orders().finish,
            cpu_percent: judgement.cpu_percent,
            settings_error: self.shared.settings.error().map(ToString::to_string),
            reclaims: self.owner.reclaims.view(),
            disk: self.disk(),
            resting_until: self.peer().resting_until().map(|until| iso(wall_now() + until.since(now))),
            slots: self.shared.config.slots,
            speed_mops: self.shared.config.speed_mops,
            grid_machines: overlay.root().map_or(1, |root| root.count),
            grid_height: overlay.root().map_or(0, |root| root.height),
            grid_speed_mops: platform.speed_mops,
            grid_maximum_stretch: platform.maximum_stretch,
            running,
            held: held.collect(),
            grid: self.shared.gate().name().map(|name| idlewood_api::GridView {
                name,
                id: hex::encode(self.shared.gate().grid().0),
                role: self.shared.gate().role(),
                certificate_expires: iso_s(self.shared.gate().expires_s()),
            }),
            admissions: self.shared.gate().admissions(),
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            requests_refused: counters.messages_refused,
            results_unsigned: self.traffic.results_unsigned(),
            checkpoints_unsigned: self.checkpoints_unsigned,
            tasks_unspoken: self.peer().unspoken_tasks(),
            distrusted: self
                .peer()
                .reputations()
                .filter(|(_, known)| known.is_distrusted())
                .map(|(peer, _)| identity::to_libp2p(peer).to_string())
                .collect(),
            routers_left_out: self
                .peer()
                .left_out()
                .into_iter()
                .map(|router| identity::to_libp2p(router).to_string())
                .collect(),
            requests_declined: self.peer().declined_requests(),
            downloads: self.downloads(),
            protocol_errors: counters.protocol_errors + self.traffic.malformed_messages(),
            disbelieved: self.disbelieved(),
            uptime_s: self.shared.clock.now().as_secs_f64(),
        }
    }

    fn downloads(&self) -> idlewood_api::Downloads {
        let downloads = self.shared.supplies.fetcher.downloads();
        let manifests = self.shared.supplies.manifest_fetcher.downloads();
        let left_alone = downloads.left_alone.into_iter().map(|(machine, left)| idlewood_api::LeftAlone {
            machine: identity::to_libp2p(machine).to_string(),
            seconds: left.as_secs(),
        });
        idlewood_api::Downloads {
            under_way: (downloads.under_way + manifests.under_way) as u64,
            waiting: (downloads.waiting + manifests.waiting) as u64,
            partial: self.shared.supplies.blobs.partials().0 as u64,
            left_alone: left_alone.collect(),
            found_slow: downloads.found_slow,
        }
    }

    fn disk(&self) -> idlewood_api::Disk {
        let blobs = &self.shared.supplies.blobs;
        let (kept_bytes, limit_bytes) = blobs.kept_bytes();
        let free_bytes = blobs.disk_free_bytes().map_err(|error| tracing::warn!(%error, "statvfs")).ok();
        idlewood_api::Disk { used_bytes: blobs.used_bytes(), kept_bytes, limit_bytes, free_bytes }
    }

    fn peers(&self) -> idlewood_api::Peers {
        let overlay = self.peer().overlay_view();
        let children = overlay.children().into_iter().flatten().map(|child| idlewood_api::ChildView {
            peer: peer_view(child.contact),
            node: match child.node {
                Node::Leaf => "leaf".to_owned(),
                Node::Router => "router".to_owned(),
            },
            machines: child.count,
            height: child.height,
        });
        let node = if overlay.hosts_router() { Node::Router } else { Node::Leaf };
        // Predecessors come nearest first.
        let mut neighbours: Vec<_> = overlay.neighbours().collect();
        let above = overlay.successor().and_then(|successor| neighbours.iter().position(|&other| other == successor));
        let below = above.unwrap_or(neighbours.len());
        neighbours[..below].reverse();
        idlewood_api::Peers {
            me: peer_view(overlay.me()),
            position: hex::encode(overlay.me().key(self.shared.gate().grid()).0),
            is_root: overlay.is_root(),
            root: overlay.root().map(|root| peer_view(&root.contact)),
            depth: overlay.depth(node),
            router_parent: overlay.parent(Node::Router).map(peer_view),
            leaf_parent: overlay.parent(Node::Leaf).map(peer_view),
            children: children.collect(),
            predecessor: overlay.predecessor().map(peer_view),
            successor: overlay.successor().map(peer_view),
            neighbours: neighbours.into_iter().map(peer_view).collect(),
        }
    }

    // ---- bags ----

    /// A bag of this machine by a unique prefix of its id, or `last`.
    pub(super) fn find(&self, id: &str) -> Result<BagView, Refusal> {
        let mut bags: Vec<BagView> = self.peer().bags().collect();
        if id == "last" {
            let last = bags.into_iter().max_by_key(|bag| bag.released);
            return last.ok_or_else(|| Refusal::NotFound("no bag was submitted from this machine yet".to_owned()));
        }
        let prefix = id.to_ascii_lowercase();
        bags.retain(|bag| hex::encode(bag.bag.id.0).starts_with(&prefix));
        match (bags.len(), bags.pop()) {
            (1, Some(bag)) => Ok(bag),
            (0, _) => Err(Refusal::NotFound(format!(
                "no bag {id:?} was submitted from this machine; `idlewood bag list` shows those that were"
            ))),
            (count, _) => {
                Err(Refusal::Ambiguous(format!("{count} bags begin with {id:?}: give more digits of the id")))
            }
        }
    }

    fn bags(&self) -> Vec<idlewood_api::Bag> {
        let mut bags: Vec<BagView> = self.peer().bags().collect();
        bags.sort_by_key(|bag| std::cmp::Reverse(bag.released));
        bags.iter().map(|bag| self.bag_view(bag)).collect()
    }

    pub(super) fn bag_view(&self, view: &BagView) -> idlewood_api::Bag {
        let now = self.shared.clock.now();
        let end = view.closed.map_or(now, |(_, at)| at);
        let elapsed_s = end.since(view.released).as_secs_f64();
        let measured = view.bag.task_mops > 0.0;
        let machines = self.peer().overlay_view().root().map_or(1, |root| root.count);
        let state = match view.closed {
            // One that was removed is in no view.
            Some((Closing::Cancelled | Closing::Removed, _)) => idlewood_api::BagState::Cancelled,
            Some((Closing::Completed, _)) if view.failed > 0 => idlewood_api::BagState::Failed,
            Some((Closing::Completed, _)) => idlewood_api::BagState::Succeeded,
            None if !measured => idlewood_api::BagState::Measuring,
            None => idlewood_api::BagState::Running,
        };
        idlewood_api::Bag {
            id: hex::encode(view.bag.id.0),
            name: self.pins.description(view.bag.id).map(|bag| bag.name.clone()).unwrap_or_default(),
            state,
            tasks: view.bag.tasks,
            done: view.done,
            failed: view.failed,
            placed: view.placed,
            machines: view.executors,
            unplaced: view.unplaced,
            reissued: view.reissued,
            duplicates: view.duplicates,
            unasked: view.unasked,
            replication: view.replication,
            disputed: view.disputed,
            undecidable: undecidable(view, machines),
            declined: view
                .declined
                .iter()
                .map(|(reason, declines)| idlewood_api::Declined {
                    reason: reason.to_string(),
                    tasks: declines.tasks,
                    machine: identity::to_libp2p(declines.last).to_string(),
                })
                .collect(),
            astray: view.astray,
            swallowed: view
                .swallowed
                .iter()
                .map(|(&router, swallowed)| idlewood_api::Swallowed {
                    machine: identity::to_libp2p(router).to_string(),
                    tasks: swallowed.tasks,
                    is_left_out: swallowed.is_left_out,
                })
                .collect(),
            work_mops: measured.then_some(view.bag.task_mops),
            measured_mops: (view.measured_mops > 0.0).then_some(view.measured_mops),
            overstated: view.overstated,
            given_up_with: (state == idlewood_api::BagState::Cancelled
                && view.bag.submitter.peer != self.peer().me().peer)
                .then(|| identity::to_libp2p(view.bag.submitter.peer).to_string()),
            submitted: self.wall(view.released),
            finished: view.closed.map(|(_, at)| self.wall(at)),
            elapsed_s,
            first_start_s: self.first_starts.get(&view.bag.id).map(|at| at.since(view.released).as_secs_f64()),
            stretch: measured.then(|| elapsed_s / view.bag.application_size_mops),
        }
    }

    fn bag_detail(&self, view: BagView) -> Result<idlewood_api::BagDetail, Refusal> {
        let bag = view.bag.id;
        let missing = || {
            let why = if self.pins.is_unread(bag) {
                "cannot be read just now; see the agent's log"
            } else {
                "is missing on this disk"
            };
            Refusal::Unavailable(format!("the manifest of bag {bag} {why}"))
        };
        let description = self.pins.description(bag).ok_or_else(missing)?;
        let left_alone = self.shared.supplies.fetcher.downloads().left_alone;
        let left_alone = |peer| left_alone.iter().find(|(alone, _)| *alone == peer).map(|(_, left)| left.as_secs());
        let placements =
            self.peer().placements(view.bag.id).into_iter().map(|(executor, ranges)| idlewood_api::Placement {
                peer: identity::to_libp2p(executor.peer).to_string(),
                tasks: ranges.len(),
                left_alone_s: left_alone(executor.peer),
            });
        Ok(idlewood_api::BagDetail {
            program: description.program.clone(),
            args: description.args.clone(),
            placements: placements.collect(),
            bag: self.bag_view(&view),
        })
    }
}

fn membership(state: State) -> &'static str {
    match state {
        State::Alone => "alone",
        State::Joining => "joining",
        State::Member => "member",
        State::Leaving => "leaving",
        State::Left => "left",
    }
}

fn peer_view(contact: &Contact) -> idlewood_api::PeerView {
    idlewood_api::PeerView { peer: identity::to_libp2p(contact.peer).to_string(), address: contact.address.to_string() }
}

/// Why nothing, or not all, of an open bag can be decided before more machines join a grid of so many.
fn undecidable(view: &BagView, machines: u64) -> Option<String> {
    let quorum = u64::from(view.replication.quorum);
    if view.closed.is_some() {
        None
    } else if quorum > machines {
        let grid = output::count(machines, "machine");
        Some(format!(
            "{quorum} machines have to say the same and the grid has {grid}: nothing is decided until more join"
        ))
    } else {
        let tasks = output::count(view.undecided, "task");
        (view.undecided > 0).then(|| {
            format!(
                "{tasks} did not end alike on {quorum} machines, and no other can be asked: they are tried again where they \
                 failed, if that can help, or wait for more to join"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use idlewood_overlay::PeerId;
    use idlewood_scheduler::{BagHeader, BagId, Replication};

    use super::*;

    #[test]
    fn a_bag_that_waits_for_more_machines_says_for_what() {
        let submitter = Contact { peer: PeerId([1; 32]), incarnation: 1, address: "".into(), nonce: None };
        let (task_mops, application_size_mops) = (1.0, 9.0);
        let id = BagId([2; 32]);
        let bag = BagHeader { id, submitter, tasks: 9, task_mops, application_size_mops, declared: true };
        let open = BagView {
            bag,
            released: Time::ZERO,
            done: 0,
            failed: 0,
            placed: 9,
            executors: 2,
            unplaced: 0,
            reissued: 0,
            duplicates: 0,
            measured_mops: 0.0,
            overstated: 0,
            replication: Replication { replicas: 3, quorum: 2, recheck: 0 },
            disputed: 0,
            undecided: 0,
            declined: BTreeMap::new(),
            unasked: 0,
            astray: 0,
            swallowed: BTreeMap::new(),
            closed: None,
        };
        let stuck = BagView { undecided: 4, ..open.clone() };
        let over = BagView { closed: Some((Closing::Cancelled, Time::ZERO)), ..stuck.clone() };
        assert_eq!([(&open, 2), (&over, 1)].map(|(view, machines)| undecidable(view, machines)), [None, None]);
        let [few, stuck] = [(&open, 1), (&stuck, 2)].map(|(view, machines)| undecidable(view, machines).expect("why"));
        assert!(few.starts_with("2 machines have to say the same and the grid has 1 machine:"), "{few}");
        assert!(stuck.starts_with("4 tasks did not end alike on 2 machines"), "{stuck}");
    }
}
