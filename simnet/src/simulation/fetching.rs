//! How files of bags and outputs of tasks travel between simulated machines: in pieces, each asked for and answered over the links of both.
//!
//! A request and a refusal are as messages; a piece is data, which messages precede. A request that is not answered in time fails, and
//! the overlay hears that the other cannot be reached, as in the agent. Requests go over connections (`connecting.rs`): a machine that is down, or cut off,
//! does not answer, and one that was switched off meanwhile resets the connection.

use std::time::Duration;

use idlewood_machine::downloads::{self, Answer, LOOK_TIMEOUT, Piece, REQUEST_TIMEOUT, Step};
use idlewood_machine::serving::Turn;
use idlewood_machine::{FetchEnd, FetchId, RETRY_AFTER, Wanted, WorkEvent};
use idlewood_overlay::{Contact, Time, WallTime};
use idlewood_scheduler::{
    Approval, BagHeader, BagId, BlobId, DeclineReason, Enclosed, Event, TaskOutcome, manifest_age,
};

use super::deed::Deed;
use super::shard::{LOCAL_DELAY, Occurrence, Shard};
use super::surroundings::Surroundings;
use crate::event_queue::HostIndex;
use crate::fetching::{Ask, Blob, Needy, Number, Purpose, Reply, Transfer};
use crate::host::host_index;
use crate::letter::Passenger;

/// Bytes of a request for a piece: hash, bag and proof, and the names of these.
const ASK_BYTES: u64 = 130;

impl Shard {
    // ---- what is wanted ----

    /// A bag of which nothing is here is to be judged: what its submitter has signed of it is needed, unless it came with the request.
    pub(super) fn look_at(&mut self, host: HostIndex, bag: &BagHeader, envelope: &Enclosed, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        let (life, blob) = (machine.life, Blob::Envelope(bag.id));
        if !envelope.is_empty() {
            machine.fetching.put(blob);
        }
        if machine.fetching.has(blob) {
            self.cause(host, now, host, Occurrence::Authorised { life, bag: bag.id });
            return;
        }
        machine.fetching.looked_at.insert(bag.id);
        self.cause(host, now + LOOK_TIMEOUT, host, Occurrence::LookLate { life, bag: bag.id });
        self.want(host, true, blob, &bag.submitter, Purpose::Look, around);
    }

    /// The owner judges a bag whose envelope is here.
    pub(super) fn judge(&mut self, host: HostIndex, bag: BagId, around: &Surroundings) {
        let machine = self.host(host);
        let age = |made: &WallTime| manifest_age(*made, machine.wall(self.now));
        let signed_ago = self.signed.get(&bag).map_or(Duration::MAX, age);
        let at_hand = machine.fetching.has(Blob::Manifest(bag));
        let program = Some(BlobId([around.program(bag); 32]));
        let verdict = machine.verdict(bag).map(|()| Approval { signed_ago, at_hand, program });
        self.give(host, Event::Authorised { bag, verdict }, around);
    }

    /// A bag could not be looked at, or not in time.
    pub(super) fn not_looked_at(&mut self, host: HostIndex, bag: BagId, around: &Surroundings) {
        if self.host_mut(host).fetching.looked_at.remove(&bag) {
            self.give(host, Event::Authorised { bag, verdict: Err(DeclineReason::Unavailable) }, around);
        }
    }

    /// Fetches the next thing that a job needs; once all is here, the job is prepared.
    pub(super) fn get_needs(&mut self, host: HostIndex, needy: Needy, around: &Surroundings) {
        let machine = self.host(host);
        let is_own = machine.peer().is_some_and(|peer| peer.me().peer == needy.submitter.peer);
        let bag = needy.task.bag;
        if machine.peer().is_some_and(|peer| peer.bag_manifest(bag).is_some()) {
            self.host_mut(host).fetching.put(Blob::Manifest(bag));
        }
        let machine = self.host(host);
        let missing = |blob: &Blob| !is_own && !machine.fetching.has(*blob);
        if let Some(blob) = around.needs(bag).find(missing) {
            let submitter = needy.submitter.clone();
            return self.want(host, false, blob, &submitter, Purpose::Job(needy), around);
        }
        if !is_own {
            self.have_all(host, bag, around);
        }
        let Needy { job, task, attempt, .. } = needy;
        if self.is_watched {
            self.deeds.push((host, Deed::Started { task, attempt }));
        }
        self.answer(host, WorkEvent::Prepared { job, memory_bytes: 0, is_example: true });
    }

    /// Fetches the next file of a bag that this machine is to keep for another; once all are here, the machine hears of it.
    pub(super) fn keep_files(&mut self, host: HostIndex, bag: BagId, from: Contact, around: &Surroundings) {
        let machine = self.host(host);
        if let Some(blob) = around.needs(bag).find(|blob| !machine.fetching.has(*blob)) {
            return self.want(host, false, blob, &from.clone(), Purpose::Keep { bag, from }, around);
        }
        self.have_all(host, bag, around);
        self.files_kept(host, bag, true);
    }

    /// All files of a bag are here, some of them perhaps for another bag.
    fn have_all(&mut self, host: HostIndex, bag: BagId, around: &Surroundings) {
        let fetching = &mut self.host_mut(host).fetching;
        around.needs(bag).for_each(|blob| fetching.put(blob));
    }

    /// The machine hears at this instant whether it has the files of a bag that it is to keep.
    fn files_kept(&mut self, host: HostIndex, bag: BagId, kept: bool) {
        let (now, life) = (self.now, self.host(host).life);
        self.cause(host, now, host, Occurrence::FilesKept { life, bag, kept });
    }

    /// A submitter fetches an output.
    pub(super) fn fetch(&mut self, host: HostIndex, id: FetchId, wanted: &Wanted, around: &Surroundings) {
        let now = self.now;
        let (task, from) = (wanted.task, &wanted.from);
        let machine = self.host_mut(host);
        let life = machine.life;
        machine.fetches.insert(id);
        if wanted.unfinished {
            machine.checkpoint_fetches.insert(id);
        }
        if from.peer == machine.id {
            let here = machine.store.has_produced(task);
            self.cause(host, now + LOCAL_DELAY, host, Occurrence::FetchEnds { life, id, task, here });
        } else if machine.misses(&around.scenario) {
            // The fetch ends without the output.
            let travel = around.network.latency(&mut machine.network_rng, host, host_index(from.peer));
            let end = Occurrence::FetchEnds { life, id, task, here: false };
            self.cause(host, now + 2 * travel, host, end);
        } else {
            let blob = Blob::Output(task);
            let begun = machine.fetching.want(
                now,
                false,
                blob,
                around.blob_bytes(blob),
                vec![from.clone()],
                Purpose::Output(id),
            );
            self.proceed(host, begun, around);
        }
    }

    /// A file of a bag is wanted from its submitter or whoever is near.
    fn want(
        &mut self,
        host: HostIndex,
        is_look: bool,
        blob: Blob,
        submitter: &Contact,
        purpose: Purpose,
        around: &Surroundings,
    ) {
        let (now, machine) = (self.now, self.host_mut(host));
        let sources = machine.peer().map(|peer| downloads::sources(peer, blob.bag(), submitter)).unwrap_or_default();
        let begun = machine.fetching.want(now, is_look, blob, around.blob_bytes(blob), sources, purpose);
        self.proceed(host, begun, around);
    }

    // ---- asking ----

    /// Lets a download take its next steps, and those that have got a place by them.
    pub(super) fn proceed(
        &mut self,
        host: HostIndex,
        downloads: impl IntoIterator<Item = Number>,
        around: &Surroundings,
    ) {
        let mut next: Vec<Number> = downloads.into_iter().collect();
        loop {
            for number in std::mem::take(&mut next) {
                self.step_download(host, number, around);
            }
            next = self.host_mut(host).fetching.take_called();
            if next.is_empty() {
                return;
            }
        }
    }

    fn step_download(&mut self, host: HostIndex, number: Number, around: &Surroundings) {
        loop {
            let (now, machine) = (self.now, self.host_mut(host));
            let life = machine.life;
            if !machine.fetching.transfers.contains_key(&number) {
                return;
            }
            let (downloads, sources) = machine.fetching.downloads(number.is_look);
            let step = downloads.next(now, number.id, sources);
            let Some(transfer) = machine.fetching.transfers.get_mut(&number) else { return };
            match step {
                Step::Wait => return,
                Step::Skip { .. } => transfer.is_gone = false,
                Step::Pause(until) => {
                    self.cause(host, until, host, Occurrence::DownloadGoesOn { life, number });
                    return;
                }
                Step::GiveUp { busy } => {
                    let is_gone = transfer.is_gone && busy.is_empty();
                    if let Some(transfer) = machine.fetching.end(number) {
                        self.not_had(host, transfer, is_gone, around);
                    }
                    return;
                }
                Step::Ask(source) => {
                    if transfer.asked.is_none() {
                        self.ask(host, number, source, around);
                    }
                    return;
                }
            }
        }
    }

    fn ask(&mut self, host: HostIndex, download: Number, source: Contact, around: &Surroundings) {
        let (now, target) = (self.now, host_index(source.peer));
        let machine = self.host_mut(host);
        let life = machine.life;
        machine.fetching.requests += 1;
        let request = machine.fetching.requests;
        let Some(transfer) = machine.fetching.transfers.get_mut(&download) else { return };
        transfer.asked = Some((request, source, now));
        let blob = transfer.blob;
        let offset = machine.fetching.got(blob);
        self.cause(host, now + REQUEST_TIMEOUT, host, Occurrence::PieceLate { life, number: download, request });
        let ask = Ask { from: host, life, download, request, blob, offset };
        self.board(host, target, Passenger::Ask(ask), around);
    }

    /// A request for a piece leaves.
    pub(super) fn send_ask(&mut self, host: HostIndex, target: HostIndex, ask: Ask, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        let sent = machine.link.send(now, ASK_BYTES + around.scenario.overhead_bytes, false);
        machine.connections.serves(target, now + REQUEST_TIMEOUT);
        let travel = around.network.latency(&mut machine.network_rng, host, target);
        if target < around.scenario.nodes && around.network.reaches(host, target) {
            self.cause(host, sent + travel, target, Occurrence::PieceAsked { ask });
        }
    }

    // ---- answering ----

    /// A machine is asked for a piece.
    pub(super) fn asked(&mut self, host: HostIndex, ask: Ask, around: &Surroundings) {
        if !self.host(host).is_up() || !self.hears(host, ask.from, around) {
            return;
        }
        let (now, machine) = (self.now, self.host_mut(host));
        let from = around.peer_ids[ask.from as usize];
        if let Err(ask) = machine.fetching.serving.ask(now, from, ask) {
            return self.refuse(host, ask, Reply::Busy, around);
        }
        self.serve(host, around);
    }

    fn serve(&mut self, host: HostIndex, around: &Surroundings) {
        let now = self.now;
        while let Some(turn) = self.host_mut(host).fetching.serving.next(now) {
            let ask = match turn {
                Turn::TooLate(ask) => {
                    self.refuse(host, ask, Reply::Busy, around);
                    continue;
                }
                Turn::Serve(ask) => ask,
            };
            let machine = self.host_mut(host);
            let is_own = machine.peer().is_some_and(|peer| peer.bag(ask.blob.bag()).is_some());
            let has = match ask.blob {
                // Keepers have fetched those that they keep.
                Blob::Output(task) => {
                    let keeps = || machine.peer().is_some_and(|peer| peer.kept().any(|(bag, _)| bag == task.bag));
                    machine.store.has_produced(task) || machine.store.has_fetched(task) && (is_own || keeps())
                }
                file => is_own || machine.fetching.serves(file),
            };
            if !has {
                machine.fetching.serving.ended(now, around.peer_ids[ask.from as usize], None);
                self.refuse(host, ask, Reply::Missing, around);
                continue;
            }
            let life = machine.life;
            let longest = machine.fetching.serving.piece_bytes(around.peer_ids[ask.from as usize]) as u64;
            let bytes = around.blob_bytes(ask.blob).saturating_sub(ask.offset).min(longest);
            let (at, taken_us) = machine.link.send_data(now, bytes + around.scenario.answer_bytes);
            machine.connections.serves(ask.from, at);
            let count =
                if matches!(ask.blob, Blob::Output(_)) { &mut self.counts.outputs } else { &mut self.counts.files };
            // Of an output all pieces count as one.
            count.count += u64::from(ask.offset == 0);
            count.bytes += bytes;
            self.cause(host, at, host, Occurrence::PieceSent { life, ask, bytes, taken_us, since: now });
        }
    }

    /// A request is answered without a piece.
    fn refuse(&mut self, host: HostIndex, ask: Ask, reply: Reply, around: &Surroundings) {
        let (now, machine) = (self.now, self.host_mut(host));
        let sent = machine.link.send(now, around.scenario.answer_bytes, false);
        self.counts.refusals += u64::from(reply == Reply::Busy);
        self.reply(host, sent, ask, reply, around);
    }

    fn reply(&mut self, host: HostIndex, sent: Time, ask: Ask, reply: Reply, around: &Surroundings) {
        let machine = self.host_mut(host);
        let travel = around.network.latency(&mut machine.network_rng, host, ask.from);
        if around.network.reaches(host, ask.from) {
            self.cause(host, sent + travel, ask.from, Occurrence::PieceArrived { ask, reply, passed: false });
        }
    }

    /// The last byte of a piece leaves a machine, unless messages that were sent meanwhile delay it.
    pub(super) fn piece_sent(
        &mut self,
        host: HostIndex,
        ask: Ask,
        bytes: u64,
        taken_us: u64,
        since: Time,
        around: &Surroundings,
    ) {
        let (now, machine) = (self.now, self.host_mut(host));
        if let Some((at, taken_us)) = machine.link.late(now, taken_us) {
            let life = machine.life;
            self.cause(host, at, host, Occurrence::PieceSent { life, ask, bytes, taken_us, since });
            return;
        }
        let piece = (bytes as usize, now.since(since));
        machine.fetching.serving.ended(now, around.peer_ids[ask.from as usize], Some(piece));
        self.reply(host, now, ask, Reply::Piece(bytes), around);
        self.serve(host, around);
    }

    // ---- answers ----

    /// The answer to a request reaches a machine; `passed`: it has also passed the machine's downlink.
    pub(super) fn piece_arrived(
        &mut self,
        host: HostIndex,
        ask: Ask,
        reply: Reply,
        passed: bool,
        around: &Surroundings,
    ) {
        let now = self.now;
        if let (Reply::Piece(bytes), false) = (reply, passed) {
            let at = self.host_mut(host).link.receive_data(now, bytes);
            if at > now {
                self.cause(host, at, host, Occurrence::PieceArrived { ask, reply, passed: true });
                return;
            }
        }
        let answer = match reply {
            Reply::Piece(_) => Answer::Piece,
            Reply::Busy => Answer::Busy,
            Reply::Missing => Answer::Nothing,
        };
        let bytes = if let Reply::Piece(bytes) = reply { bytes } else { 0 };
        let Some(took) = self.landed(host, ask.download, ask.request, answer, bytes) else { return };
        if answer == Answer::Piece {
            let piece = Piece { bytes: bytes as usize, took };
            self.give(host, idlewood_machine::Event::PieceCame(piece), around);
        }
        let machine = self.host_mut(host);
        if answer == Answer::Piece && machine.fetching.came(ask.download, bytes) {
            if let Some(transfer) = machine.fetching.end(ask.download) {
                self.had(host, transfer, around);
            }
            return self.proceed(host, None, around);
        }
        self.proceed(host, Some(ask.download), around);
    }

    /// No answer has come in time: the other cannot be reached, as far as is known here.
    pub(super) fn piece_late(&mut self, host: HostIndex, number: Number, request: u64, around: &Surroundings) {
        let transfer = self.host_mut(host).fetching.transfers.get_mut(&number);
        let Some(transfer) =
            transfer.filter(|transfer| transfer.asked.as_ref().is_some_and(|asked| asked.0 == request))
        else {
            return;
        };
        transfer.is_gone = false;
        let source = transfer.asked.as_ref().map(|(_, source, _)| source.peer);
        self.landed(host, number, request, Answer::Nothing, 0);
        self.proceed(host, Some(number), around);
        source.into_iter().for_each(|source| self.give(host, Event::ConnectionLost(source), around));
    }

    /// A request is over; returns how long it took. `None`: it was over before.
    fn landed(
        &mut self,
        host: HostIndex,
        number: Number,
        request: u64,
        answer: Answer,
        bytes: u64,
    ) -> Option<Duration> {
        let (now, machine) = (self.now, self.host_mut(host));
        let transfer = machine.fetching.transfers.get_mut(&number)?;
        let (_, source, since) = transfer.asked.take_if(|asked| asked.0 == request)?;
        let took = now.since(since);
        let brought = (answer != Answer::Busy).then_some(bytes as usize);
        machine.fetching.sources.answered(now, source.peer, took, brought);
        machine.fetching.downloads(number.is_look).0.answered(now, number.id, answer);
        Some(took)
    }

    // ---- what came of it ----

    /// A blob is here.
    fn had(&mut self, host: HostIndex, transfer: Transfer, around: &Surroundings) {
        for purpose in transfer.purposes {
            match purpose {
                Purpose::Output(fetch) => {
                    if let Blob::Output(task) = transfer.blob {
                        self.end_fetch(host, fetch, task, true, around);
                    }
                }
                Purpose::Look => {
                    let bag = transfer.blob.bag();
                    if self.host_mut(host).fetching.looked_at.remove(&bag) {
                        self.judge(host, bag, around);
                    }
                }
                Purpose::Job(needy) => self.get_needs(host, needy, around),
                Purpose::Keep { bag, from } => self.keep_files(host, bag, from, around),
            }
        }
    }

    /// A blob is not to be had: now, or, where it `is_gone`, at all.
    fn not_had(&mut self, host: HostIndex, transfer: Transfer, is_gone: bool, around: &Surroundings) {
        for purpose in transfer.purposes {
            match purpose {
                Purpose::Output(fetch) => {
                    if self.host_mut(host).fetches.remove(&fetch) {
                        let end = if is_gone { FetchEnd::NotHad } else { FetchEnd::PutOff };
                        self.give(host, idlewood_machine::Event::FetchEnded { fetch, end }, around);
                    }
                }
                Purpose::Look => self.not_looked_at(host, transfer.blob.bag(), around),
                Purpose::Keep { bag, .. } => self.files_kept(host, bag, false),
                Purpose::Job(Needy { job, task, .. }) => {
                    let outcome = TaskOutcome::NotStarted { retry_after: RETRY_AFTER };
                    self.answer(host, WorkEvent::Over { job, task, outcome });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::report::MessageCount;
    use crate::{Report, Scenario, Simulation};

    fn run(scenario: Scenario) -> Report {
        let report = Simulation::new(scenario).expect("a valid scenario").run(|_| {});
        assert_eq!(report.completed_tasks, report.accepted_tasks, "{report}");
        assert_eq!((report.lost_tasks, report.open_tasks, report.unaccepted_tasks), (0, 0, 0));
        report
    }

    /// One bag of tasks of a minute, a few for each machine.
    fn bag(nodes: u32) -> Scenario {
        let (task_mops_min, task_mops_max) = (120_000.0, 120_000.0);
        Scenario { nodes, bags: 1, tasks_per_node: 4, task_mops_min, task_mops_max, ..Scenario::default() }
    }

    #[test]
    fn each_machine_fetches_what_a_bag_needs_once() {
        let report = run(Scenario { program_bytes: 100_000, input_bytes: 200_000, ..bag(8) });
        let MessageCount { count, bytes } = report.files;
        // All but the submitter.
        let machines: u64 = 7;
        assert_eq!((count, bytes), (2 * machines, 300_000 * machines), "envelope and manifest come with tasks");
        let long = run(Scenario { envelope_bytes: 2000, manifest_bytes: 3000, ..bag(8) });
        assert_eq!((long.files.count, long.files.bytes), (2 * machines, 5000 * machines));
        let without = run(bag(8));
        assert_eq!(without.files.count, 0);
        let later = report.makespan_s - without.makespan_s;
        // The submitter's uplink takes two and a half seconds for each machine.
        assert!((2.0..40.0).contains(&later), "{later}");
    }

    #[test]
    fn a_machine_fetches_a_program_once_for_all_bags_that_run_it() {
        let bytes = |programs| run(Scenario { programs, bags: 3, program_bytes: 100_000, ..bag(8) }).files.bytes;
        let (shared, apart) = (bytes(1), bytes(8));
        // All but the submitter of each program fetch it, and a manifest now and then.
        assert!((500_000..710_000).contains(&shared), "{shared}");
        assert!((2_100_000..2_110_000).contains(&apart), "{apart}: each of three bags has a program of its own");
    }

    /// Each machine has at most one piece on its way: the rate of a whole piece is the link's but for the way there and back.
    #[test]
    fn machines_measure_their_links_by_what_they_fetch() {
        let scenario = Scenario { program_bytes: 2_000_000, bandwidth_bytes_s: 1_000_000, ..bag(4) };
        let mut simulation = Simulation::new(scenario).expect("a valid scenario");
        simulation.run(|_| {});
        let measured: Vec<u32> = (0..4).map(|host| simulation.peer(host).expect("it is up").link_kb_s()).collect();
        let fetched = measured.iter().filter(|&&kb_s| kb_s != idlewood_scheduler::LINK_KB_S);
        assert_eq!(fetched.clone().count(), 3, "all but the submitter: {measured:?}");
        assert!(fetched.clone().all(|kb_s| (250..1000).contains(kb_s)), "{measured:?}");
    }

    /// The submitter's line takes two minutes for the program of sixty machines. Were all pieces to leave at once, none would be there
    /// in the time that is allowed for it.
    #[test]
    fn a_slow_submitter_sends_next_to_nothing_in_vain() {
        let report = run(Scenario { program_bytes: 250_000, ..bag(60) });
        let needed = 59 * 250_000;
        let share = report.files.bytes as f64 / f64::from(needed);
        assert!((1.0..1.15).contains(&share), "{share} of what is needed was sent");
        assert!(report.refusals > 0, "nobody had to wait");
        assert_eq!(report.duplicate_tasks, 0);
    }

    /// Outputs of a megabyte come to a line that takes eight seconds for each, from everywhere at once.
    #[test]
    fn no_work_is_thrown_away_while_outputs_wait_for_a_slow_submitter() {
        let report = run(Scenario { output_bytes: 1_000_000, ..bag(30) });
        assert_eq!(report.duplicate_tasks, 0, "{report}");
        assert!(report.wasted_work_share < 1e-6, "{}", report.wasted_work_share);
        let (came, needed) = (report.outputs.bytes as f64, report.accepted_tasks as f64 * 1e6);
        assert!(came < 1.1 * needed, "{came} bytes of {needed}");
    }
}
