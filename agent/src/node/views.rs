//! Answers to the control API: what this machine knows, in the API's words.
//!
//! Left out: what is read from the store (`readings`).

use std::time::Duration;

use idlewood_machine::Machine;
use idlewood_overlay::{Contact, Node, State};
use idlewood_scheduler::{BagView, Peer};
use idlewood_trust::identity;
use idlewood_units::clock::{iso, iso_s, wall_now};
use jiff::Zoned;

use super::bag_views::{self, find, wall};
use super::execution::Execution;
use super::names::Names;
use super::owner::Owner;
use super::pins::Pins;
use super::presence::Presence;
use super::shared::{Due, Shared};
use super::submissions::Submissions;
use super::traffic::Traffic;
use crate::bounds::{self, Around};
use crate::handle::{Question, Refusal, answer};
use crate::reasons;

/// All that answers are read from.
pub(super) struct View<'a> {
    pub(super) machine: &'a Machine,
    pub(super) shared: &'a Shared,
    pub(super) execution: &'a Execution,
    pub(super) owner: &'a Owner,
    pub(super) submissions: &'a Submissions,
    pub(super) pins: &'a Pins,
    pub(super) presence: &'a Presence,
    pub(super) traffic: &'a Traffic,
    pub(super) names: &'a Names,
}

impl View<'_> {
    /// Answers a question.
    pub(super) fn answer(&self, question: Question) {
        match question {
            Question::Status(reply) => answer(reply, Ok(self.status())),
            Question::Peers(reply) => answer(reply, Ok(self.peers())),
            Question::Names(reply) => answer(reply, Ok(self.names.all())),
            Question::Bags(wanted, reply) => answer(reply, self.bags(&wanted)),
            Question::Bag(id, reply) => {
                answer(reply, find(self.peer(), self.pins, &id).and_then(|bag| self.bag_detail(bag)))
            }
        }
    }

    /// Answers whoever waits for what the machine has heard by now.
    pub(super) fn answer_due(&self, due: Due) {
        match due {
            Due::Status(reply) => answer(reply, Ok(self.status())),
            Due::Bag { bag, was, gone, reply } => {
                let shown = was.map(|was| *was).or_else(|| self.peer().bag(bag).map(|view| self.bag(&view)));
                answer(reply, shown.ok_or(gone));
            }
        }
    }

    fn peer(&self) -> &Peer {
        self.machine.peer()
    }

    // ---- this machine ----

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

    fn endless_here(&self) -> Vec<idlewood_api::EndlessHere> {
        let speed_mops = self.machine.speed_mops() * f64::from(self.shared.config.slots);
        let of = |(bag, work_mops): (idlewood_scheduler::BagId, f64)| idlewood_api::EndlessHere {
            bag: hex::encode(bag.0),
            work_mops,
            percent: 100.0 * work_mops / speed_mops,
        };
        self.peer().endless_shares().into_iter().map(of).collect()
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
        let change = self.owner_change();
        let changed = self.owner.active_since().max(judgement.since);
        let (activity, since) = match (judgement.cpu_percent, running.is_empty()) {
            (0, _) => ("suspended", judgement.since),
            (_, true) => ("idle", changed),
            (_, false) => ("working", changed),
        };
        // Without a reason nothing holds it up but a lack of work.
        let until = change.or_else(|| running.is_empty().then(|| "work arrives".to_owned()));
        let held = self.peer().held().into_iter().map(|held| idlewood_api::Held {
            bag: hex::encode(held.bag.0),
            submitter: identity::to_libp2p(held.submitter).to_string(),
            waiting: held.waiting,
            running: held.running,
            unacknowledged: held.unacknowledged,
            times_declared: held.times_declared,
        });
        idlewood_api::Status {
            peer: identity::to_libp2p(self.peer().me().peer).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            membership: membership(overlay.state()).to_owned(),
            refused: self.refused(),
            listen: vec![self.presence.listen().to_string()],
            activity: activity.to_owned(),
            reason: judgement.reason.as_ref().map(reasons::text),
            reason_code: judgement.reason.as_ref().map(|reason| reason.code().to_owned()),
            since: wall(&self.shared.clock, since),
            until,
            finishing: owner.orders().finish,
            cpu_percent: judgement.cpu_percent,
            settings_error: self.shared.settings.error().map(ToString::to_string),
            reclaims: self.owner.reclaims().view(),
            disk: self.disk(),
            resting_until: self.peer().resting_until().map(|until| iso(wall_now() + until.since(now))),
            slots: self.shared.config.slots,
            speed_mops: self.machine.speed_mops(),
            grid_machines: overlay.root().map_or(1, |root| root.count),
            grid_height: overlay.root().map_or(0, |root| root.height),
            grid_speed_mops: platform.speed_mops,
            grid_maximum_stretch: platform.maximum_stretch,
            running,
            held: held.collect(),
            endless: self.endless_here(),
            kept: self.peer().kept().count() as u64,
            acts_for: self.peer().kept().filter(|(_, acts)| *acts).count() as u64,
            grid: self.shared.gate().name().map(|name| idlewood_api::GridView {
                name,
                id: hex::encode(self.shared.gate().grid().0),
                role: self.shared.gate().role(),
                certificate_expires: iso_s(self.shared.gate().expires_s()),
            }),
            admissions: self.shared.gate().admissions(),
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            blob_bytes_sent: counters.blob_bytes_sent,
            messages_sent: self.shared.sent.by_kind(),
            tasks_run: self.execution.tasks_run(),
            requests_refused: counters.messages_refused,
            results_unsigned: self.traffic.results_unsigned(),
            lives_twice: self.presence.lives_twice(),
            appointments_forged: self.traffic.appointments_forged(),
            checkpoints_unsigned: self.execution.checkpoints_unsigned(),
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

    fn bags(&self, wanted: &idlewood_api::BagsWanted) -> Result<Vec<idlewood_api::Bag>, Refusal> {
        let now = self.shared.clock.now();
        let is_new = |bag: &BagView| wanted.since_s.is_none_or(|since| now.since(bag.submitted).as_secs_f64() <= since);
        let place = |bag: &BagView| (std::cmp::Reverse(bag.submitted), bag.bag.id);
        let before = wanted.before.as_ref().map(|id| find(self.peer(), self.pins, id)).transpose()?;
        let before = before.as_ref().map(place);
        let mut bags: Vec<BagView> = self.peer().bags().filter(is_new).collect();
        bags.retain(|bag| before.is_none_or(|before| place(bag) > before));
        bags.sort_by_key(place);
        let all = bags.iter().map(|bag| self.bag(bag));
        let of_state = all.filter(|bag| wanted.state.is_empty() || wanted.state.contains(&bag.state));
        let most = wanted.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(of_state.take(most).collect())
    }

    fn bag(&self, view: &BagView) -> idlewood_api::Bag {
        let first_start = self.submissions.first_start(view.bag.id);
        let mut bag = bag_views::bag(view, first_start, self.pins, self.peer(), self.shared);
        if view.closed.is_none() {
            let memory_bytes = self.pins.description(view.bag.id).map(|description| description.memory_bytes);
            let explanation = self.machine.explain(view, memory_bytes, self.shared.clock.now());
            let name = |bag| self.peer().bag(bag).map(|view| self.pins.name(&view));
            let around = Around {
                me: self.peer().me().peer,
                machines: self.peer().overlay_view().root().map_or(1, |root| root.count),
                owner_change: self.owner_change(),
                owner_ends_at: self.owner_ends_in().map(|left| iso(wall_now() + left)),
                refused: self.refused(),
                name: &name,
                machine: &|machine| self.names.of(machine),
                at: &|time| iso(wall_now() + time.since(self.shared.clock.now())),
            };
            bag.runs = explanation.runs;
            if !bag.runs {
                (bag.predicted_end, bag.predicted_end_within_s) = (None, None);
            }
            bag.bounds = explanation.bounds.iter().map(|bound| bounds::told(bound, &around)).collect();
        }
        bag
    }

    /// What would change the judgement on the owner.
    fn owner_change(&self) -> Option<String> {
        let owner = self.machine.owner();
        let (settings, facts, now) = (self.shared.settings.get(), self.owner.facts(), self.shared.clock.now());
        reasons::what_would_change(owner.judgement(), now, &Zoned::now(), settings, &facts, owner.orders())
    }

    /// In how long a time that judgement ends by itself.
    fn owner_ends_in(&self) -> Option<Duration> {
        let (owner, settings, now) = (self.machine.owner(), self.shared.settings.get(), self.shared.clock.now());
        reasons::ends_in(owner.judgement(), now, &Zoned::now(), settings, owner.orders())
    }

    /// Why others refuse this machine. One machine of a grid may refuse whom the others let in.
    fn refused(&self) -> Option<String> {
        let refused = || self.shared.gate().refused_as().map(|refused| refused.to_string());
        (self.peer().overlay_view().state() != State::Member).then(refused).flatten()
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
        // A bag that was adopted is shown while its manifest is on its way from the machines that keep it.
        let is_coming = || self.peer().stewards(bag).next().is_some() && !self.pins.is_unread(bag);
        let description = self.pins.description(bag);
        if description.is_none() && !is_coming() {
            return Err(missing());
        }
        let left_alone = self.shared.supplies.fetcher.downloads().left_alone;
        let left_alone = |peer| left_alone.iter().find(|(alone, _)| *alone == peer).map(|(_, left)| left.as_secs());
        let placements =
            self.peer().placements(view.bag.id).into_iter().map(|(executor, ranges)| idlewood_api::Placement {
                peer: identity::to_libp2p(executor.peer).to_string(),
                tasks: ranges.len(),
                left_alone_s: left_alone(executor.peer),
            });
        let declining = self.peer().declining(bag).into_iter().map(|(machine, reason)| idlewood_api::Declining {
            peer: identity::to_libp2p(machine).to_string(),
            code: bounds::code_of(reason).to_owned(),
            reason: reason.to_string(),
        });
        Ok(idlewood_api::BagDetail {
            declining: declining.collect(),
            program: description.map(|description| description.program.clone()).unwrap_or_default(),
            args: description.map(|description| description.args.clone()).unwrap_or_default(),
            placements: placements.collect(),
            bag: self.bag(&view),
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
