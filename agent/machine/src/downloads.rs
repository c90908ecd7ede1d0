//! Downloads of blobs, without IO: which source each asks next, how many run at a time, and when one is given up.
//!
//! A download asks one source after the other for pieces, and busy ones again. It asks while it has a place (`places`): a few
//! downloads run at a time, fewer of each source and each bag, so that a machine that gets many tasks does not fill its
//! connection with one submitter's inputs, and a slow source delays no other; and fewer where this machine's line is full, since
//! what comes too late comes for nothing. A source slower than a minimum rate is left
//! alone for a while (`sources`).
//!
//! The driver asks the sources, checks and stores what they give, and says what came of it. Left out: asking several sources in parallel.

mod places;
mod sources;

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};
use idlewood_scheduler::{BagId, Peer};

pub use self::places::DownloadId;
use self::places::Places;
pub use self::sources::{Patience, Sources};

/// Longest time for one request and its answer. Our choice.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long what was signed of a bag is waited for before the bag is judged: its submitter counts a request that nobody speaks of after 15 s as lost.
pub const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// First pause while all sources are busy. It doubles each time no piece comes.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Pieces of so many bytes show what the link takes: shorter ones show the round trip to their source. One that took a second or more shows it from the shortest
/// length on that is no end of a blob. Our choice.
const SHOWING_BYTES_MIN: usize = 64 << 10;
const SHOWING_TIME_MIN: Duration = Duration::from_secs(1);
const SHOWING_SLOW_BYTES_MIN: usize = crate::serving::PIECE_BYTES_MIN;

/// A piece of a blob that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its length.
    pub bytes: usize,
    /// How long after its source was asked for it.
    pub took: Duration,
}

impl Piece {
    /// What it shows that this machine's link takes at least, in kB/s; `None`: it is too short to show anything.
    pub fn shows_kb_s(self) -> Option<u32> {
        let kb_s = self.bytes as f64 / self.took.as_secs_f64().max(1e-6) / 1000.0;
        let least = if self.took < SHOWING_TIME_MIN { SHOWING_BYTES_MIN } else { SHOWING_SLOW_BYTES_MIN };
        (self.bytes >= least).then_some(kb_s as u32)
    }
}

/// What a download does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It asks this source for the next piece, and hears the answer ([`Downloads::answered`]).
    Ask(Contact),
    /// It does not ask this source, which is left alone for so much longer: there is another step.
    Skip {
        /// The source.
        source: PeerId,
        /// For how much longer.
        alone: Duration,
    },
    /// It waits for a place, until it is among [`Downloads::take_called`].
    Wait,
    /// All sources are busy: there is another step at this moment.
    Pause(Time),
    /// No source gives it.
    GiveUp {
        /// The sources that were busy to the end.
        busy: Vec<PeerId>,
    },
}

/// What came of asking a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A piece, of which the driver can use all.
    Piece,
    /// It is to be asked again later.
    Busy,
    /// It does not have the blob, gives another one, or does not answer: it is not asked again.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next source has not been asked yet.
    Free,
    /// It waits for a place.
    Waiting,
    /// It has a place.
    Asking,
    Pausing(Time),
    GivenUp,
}

#[derive(Debug)]
struct Download {
    bag: BagId,
    /// Sources of this round, and the next of them.
    sources: Vec<Contact>,
    next: usize,
    /// Those that were busy in this round: the sources of the next one.
    busy: Vec<Contact>,
    state: State,
    /// When the source was asked for the piece that is awaited.
    asked: Option<Time>,
    pause: Duration,
    /// When a piece came last.
    came: Time,
}

impl Download {
    fn pass_on(&mut self) {
        self.next += 1;
        (self.state, self.asked) = (State::Free, None);
    }
}

/// The downloads that have places in common.
#[derive(Debug, Default)]
pub struct Downloads {
    places: Places,
    downloads: BTreeMap<DownloadId, Download>,
    begun: u64,
    /// Downloads that have waited and have a place now.
    called: Vec<DownloadId>,
}

/// Where a bag's blobs come from: the keeper that acts, its submitter, its stewards, then whoever is near.
pub fn sources(peer: &Peer, bag: BagId, submitter: &Contact) -> Vec<Contact> {
    let keepers = peer.sources(bag);
    let (first, stewards) = keepers.split_at(keepers.len().min(1));
    let others = first.iter().chain([submitter]).chain(stewards).chain(peer.overlay_view().neighbours());
    let mut sources: Vec<Contact> = Vec::new();
    for contact in others.filter(|contact| contact.peer != peer.me().peer) {
        if sources.iter().all(|known| known.peer != contact.peer) {
            sources.push(contact.clone());
        }
    }
    sources
}

impl Downloads {
    /// A blob of a bag is wanted from these sources, in this order.
    pub fn begin(&mut self, now: Time, bag: BagId, sources: Vec<Contact>) -> DownloadId {
        self.begun += 1;
        let id = DownloadId(self.begun);
        let (next, busy, state, asked, pause, came) = (0, Vec::new(), State::Free, None, BUSY_PAUSE, now);
        self.downloads.insert(id, Download { bag, sources, next, busy, state, asked, pause, came });
        id
    }

    /// What a download does next: the same again until it has been answered, has a place, or its pause is over.
    pub fn next(&mut self, now: Time, id: DownloadId, sources: &Sources) -> Step {
        loop {
            let Some(download) = self.downloads.get_mut(&id) else { return Step::GiveUp { busy: Vec::new() } };
            match download.state {
                State::Pausing(until) if now < until => return Step::Pause(until),
                State::Pausing(_) => {
                    download.sources = std::mem::take(&mut download.busy);
                    (download.next, download.state) = (0, State::Free);
                }
                State::Waiting => return Step::Wait,
                State::GivenUp => {
                    return Step::GiveUp { busy: download.busy.iter().map(|source| source.peer).collect() };
                }
                State::Free | State::Asking => {
                    let Some(source) = download.sources.get(download.next) else {
                        let is_over = download.busy.is_empty() || now.since(download.came) >= sources.patience.busy_max;
                        download.state = if is_over { State::GivenUp } else { State::Pausing(now + download.pause) };
                        download.pause = (download.pause * 2).min(sources.patience.busy_pause_max);
                        continue;
                    };
                    if let Some(alone) = sources.alone(now, source.peer) {
                        let source = source.peer;
                        self.leave(id);
                        return Step::Skip { source, alone };
                    }
                    if download.state == State::Asking {
                        download.asked.get_or_insert(now);
                        return Step::Ask(source.clone());
                    }
                    let has_place = self.places.take(id, source.peer, download.bag);
                    download.state = if has_place { State::Asking } else { State::Waiting };
                }
            }
        }
    }

    /// The source that a download was to ask has answered, or has not.
    pub fn answered(&mut self, now: Time, id: DownloadId, answer: Answer) {
        let Some(download) = self.downloads.get_mut(&id).filter(|download| download.state == State::Asking) else {
            return;
        };
        if let Some(asked) = download.asked.take()
            && answer != Answer::Busy
        {
            self.places.heard(asked, now, answer == Answer::Piece);
        }
        match answer {
            Answer::Piece => {
                (download.pause, download.came) = (BUSY_PAUSE, now);
                let called = self.places.give();
                self.call(called);
            }
            Answer::Busy => {
                download.busy.extend(download.sources.get(download.next).cloned());
                self.leave(id);
            }
            Answer::Nothing => self.leave(id),
        }
    }

    /// The blob is here, or nobody wants it any more.
    pub fn end(&mut self, id: DownloadId) {
        self.leave(id);
        self.downloads.remove(&id);
        self.called.retain(|called| *called != id);
    }

    /// A download passes on to the next source; its place, or its wait for one, ends.
    fn leave(&mut self, id: DownloadId) {
        let Some(download) = self.downloads.get_mut(&id) else { return };
        let source = download.sources.get(download.next).map(|source| source.peer);
        let state = download.state;
        download.pass_on();
        match (state, source) {
            (State::Waiting, _) => self.places.leave(id),
            (State::Asking, Some(source)) => {
                let called = self.places.give_back(source, download.bag);
                self.call(called);
            }
            (State::Free | State::Asking | State::Pausing(_) | State::GivenUp, _) => {}
        }
    }

    /// These have a place now.
    fn call(&mut self, called: Vec<DownloadId>) {
        for &called in &called {
            if let Some(download) = self.downloads.get_mut(&called) {
                download.state = State::Asking;
            }
        }
        self.called.extend(called);
    }

    /// Downloads that have waited and have got a place since the last call: each has another step.
    pub fn take_called(&mut self) -> Vec<DownloadId> {
        std::mem::take(&mut self.called)
    }

    /// How many have a place, and how many wait for one.
    pub fn count(&self) -> (usize, usize) {
        self.places.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAG: BagId = BagId([9; 32]);

    fn contact(number: u8) -> Contact {
        Contact { peer: PeerId([number; 32]), incarnation: 1, address: "".into(), nonce: None }
    }

    fn at(millis: i64) -> Time {
        Time::from_micros(1000 * millis)
    }

    #[test]
    fn a_long_piece_shows_what_the_link_takes_and_a_short_one_nothing() {
        let shows = |bytes, millis| Piece { bytes, took: Duration::from_millis(millis) }.shows_kb_s();
        assert_eq!(shows(262_144, 2000), Some(131));
        assert_eq!(shows(65_536, 0), Some(65_536_000));
        assert_eq!(shows(65_535, 1), None);
        assert_eq!(shows(16_384, 1_024), Some(16), "short, and slow");
    }

    #[test]
    fn sources_are_asked_in_order_and_busy_ones_again_ever_later() {
        let (mut downloads, sources) = (Downloads::default(), Sources::default());
        let id = downloads.begin(at(0), BAG, vec![contact(1), contact(2), contact(3)]);
        for (asked, answer) in [(1, Answer::Busy), (2, Answer::Nothing), (3, Answer::Busy)] {
            assert_eq!(downloads.next(at(0), id, &sources), Step::Ask(contact(asked)));
            assert_eq!(downloads.next(at(0), id, &sources), Step::Ask(contact(asked)), "until it has answered");
            downloads.answered(at(0), id, answer);
        }
        assert_eq!(downloads.next(at(0), id, &sources), Step::Pause(at(50)));
        assert_eq!(downloads.count(), (0, 0), "who pauses has no place");
        assert_eq!(downloads.next(at(50), id, &sources), Step::Ask(contact(1)));
        downloads.answered(at(50), id, Answer::Busy);
        assert_eq!(downloads.next(at(50), id, &sources), Step::Ask(contact(3)));
        downloads.answered(at(50), id, Answer::Busy);
        assert_eq!(downloads.next(at(50), id, &sources), Step::Pause(at(150)), "twice as long");
        assert_eq!(downloads.next(at(150), id, &sources), Step::Ask(contact(1)));
        downloads.answered(at(150), id, Answer::Piece);
        assert_eq!(downloads.next(at(150), id, &sources), Step::Ask(contact(1)), "it gives on");
        downloads.answered(at(160), id, Answer::Busy);
        assert_eq!(downloads.next(at(160), id, &sources), Step::Ask(contact(3)));
        downloads.answered(at(160), id, Answer::Busy);
        assert_eq!(downloads.next(at(160), id, &sources), Step::Pause(at(210)), "a piece came");
        downloads.end(id);
        assert_eq!(downloads.next(at(210), id, &sources), Step::GiveUp { busy: Vec::new() });
    }

    #[test]
    fn sources_that_are_busy_for_too_long_are_given_up() {
        let (mut downloads, sources) = (Downloads::default(), Sources::default());
        let id = downloads.begin(at(0), BAG, vec![contact(1)]);
        let mut now = at(0);
        let over = loop {
            match downloads.next(now, id, &sources) {
                Step::Ask(_) => downloads.answered(now, id, Answer::Busy),
                Step::Pause(until) => now = until,
                other => break other,
            }
        };
        assert_eq!(over, Step::GiveUp { busy: vec![contact(1).peer] });
        assert!((120..123).contains(&(now.as_micros() / 1_000_000)), "{now:?}");
    }

    #[test]
    fn a_download_waits_for_its_place_and_is_called() {
        let (mut downloads, sources) = (Downloads::default(), Sources::default());
        let ids: Vec<DownloadId> = (0..6).map(|_| downloads.begin(at(0), BAG, vec![contact(1)])).collect();
        let steps: Vec<Step> = ids.iter().map(|&id| downloads.next(at(0), id, &sources)).collect();
        assert_eq!(steps[3..], [Step::Ask(contact(1)), Step::Wait, Step::Wait]);
        downloads.end(ids[4]);
        downloads.answered(at(1), ids[0], Answer::Nothing);
        assert_eq!(downloads.take_called(), [ids[5]], "the other one is gone");
        assert_eq!(downloads.take_called(), []);
        assert_eq!(downloads.next(at(1), ids[5], &sources), Step::Ask(contact(1)));
        assert_eq!(downloads.next(at(1), ids[0], &sources), Step::GiveUp { busy: Vec::new() });
        ids.iter().for_each(|&id| downloads.end(id));
        assert_eq!((downloads.count(), downloads.downloads.len()), ((0, 0), 0));
    }

    #[test]
    fn a_source_that_is_left_alone_is_passed_over_by_whoever_has_a_place_with_it() {
        let (mut downloads, mut sources) = (Downloads::default(), Sources::default());
        let id = downloads.begin(at(0), BAG, vec![contact(1), contact(2)]);
        assert_eq!(downloads.next(at(0), id, &sources), Step::Ask(contact(1)));
        sources.answered(at(0), contact(1).peer, Duration::from_secs(30), Some(0)).expect("it is too slow");
        let (source, alone) = (contact(1).peer, Duration::from_secs(30));
        assert_eq!(downloads.next(at(0), id, &sources), Step::Skip { source, alone });
        assert_eq!(downloads.next(at(0), id, &sources), Step::Ask(contact(2)));
        assert_eq!(downloads.count(), (1, 0));
    }
}
