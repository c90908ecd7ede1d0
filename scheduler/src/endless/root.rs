//! What the root alone does: it keeps the announced bags, and computes the rates of those that share the grid.

use std::collections::BTreeMap;
use std::time::Duration;

use idlewood_overlay::{Contact, PeerId, Time};

use super::{ANNOUNCED_FOR, ENDLESS_MAX, EndlessBag, Grant, Limit, Standing};
use crate::bag::{AGE_MAX, BagId};
use crate::shares::{Absorption, Application, Core, CoreNode, Ratios};

/// Most bags that wait or share.
const ANNOUNCED_MAX: usize = 1024;
/// A limit counts as reached from this share of it on.
const REACHED: f64 = 0.98;

/// An announced bag.
#[derive(Debug)]
struct Announced {
    bag: EndlessBag,
    /// Its place among those that wait.
    since: Time,
    /// When its submitter said so itself; at first when anybody did.
    heard: Time,
}

/// The bags that were announced to this machine as the root.
#[derive(Debug, Default)]
pub(super) struct Root {
    announced: BTreeMap<BagId, Announced>,
}

impl Root {
    /// This machine is root from now on: the bags of the table keep their places until they are announced to it.
    pub(super) fn take_over(&mut self, table: &[EndlessBag], now: Time) {
        for bag in table {
            let announced = || Announced { bag: bag.clone(), since: now - AGE_MAX, heard: now };
            self.announced.entry(bag.bag).or_insert_with(announced);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.announced.is_empty()
    }

    /// Another machine is root.
    pub(super) fn step_down(&mut self) {
        self.announced.clear();
    }

    /// A machine announces a bag, for the first time or again. Anybody could pass on what no submitter has said: so what others say adds a bag
    /// until its submitter should have spoken, and changes or ends none. Of two machines that both say that a bag is theirs the first one counts.
    ///
    /// Returns the submitter of the bag, if it is known now, and whether it was the one who spoke.
    pub(super) fn announced(&mut self, bag: EndlessBag, from: PeerId, now: Time) -> Option<(Contact, bool)> {
        let (id, is_over, by_submitter) = (bag.bag, bag.standing == Standing::Gone, bag.submitter.peer == from);
        let has_room = self.announced.len() < ANNOUNCED_MAX;
        match self.announced.get_mut(&id) {
            Some(known) if !by_submitter || known.bag.submitter.peer != from => {
                return Some((known.bag.submitter.clone(), false));
            }
            Some(_) if is_over => {
                self.announced.remove(&id);
                return None;
            }
            Some(known) => (known.bag, known.heard) = (bag, now),
            None if !is_over && has_room => {
                let waited = Duration::from_secs(bag.waited_s).min(AGE_MAX / 2);
                self.announced.insert(id, Announced { bag, since: now - waited, heard: now });
            }
            None => {}
        }
        self.announced.get(&id).map(|known| (known.bag.submitter.clone(), by_submitter))
    }

    /// When the first bag is forgotten, unless it is announced again.
    pub(super) fn forgets_at(&self) -> Option<Time> {
        self.announced.values().map(|announced| announced.heard + ANNOUNCED_FOR).min()
    }

    pub(super) fn forget_silent(&mut self, now: Time) {
        self.announced.retain(|_, announced| announced.heard + ANNOUNCED_FOR > now);
    }

    /// The bags in the order of their turns.
    fn in_order(&self) -> Vec<&Announced> {
        let mut all: Vec<&Announced> = self.announced.values().collect();
        all.sort_by_key(|announced| (announced.since, announced.bag.bag));
        all
    }

    /// The bags that share the grid, by id.
    pub(super) fn sharing(&self) -> Vec<EndlessBag> {
        let mut sharing: Vec<EndlessBag> =
            self.in_order().into_iter().take(ENDLESS_MAX).map(|announced| announced.bag.clone()).collect();
        sharing.sort_by_key(|bag| bag.bag);
        sharing
    }

    /// How many bags have their turn before this one; `None` if it is not known.
    pub(super) fn ahead(&self, bag: BagId) -> Option<u32> {
        let place = self.in_order().iter().position(|announced| announced.bag.bag == bag)?;
        Some((place + 1).saturating_sub(ENDLESS_MAX) as u32)
    }
}

/// The best rates of these bags, in Mop/s, on a grid that absorbs so much. Bags without tasks, and those that no machine would take,
/// have none, and take nothing from the others.
pub(super) fn best_rates(bags: &[EndlessBag], ratios: &Ratios, grid: &Absorption) -> Vec<f64> {
    let takes_part = |&number: &usize| bags[number].standing == Standing::Active && grid.alone(number) > 0.0;
    let numbers: Vec<usize> = (0..bags.len()).filter(takes_part).collect();
    let mut rates = vec![0.0; bags.len()];
    let Ok(of_these) = Ratios::new(numbers.iter().map(|&number| ratios.of(number)).collect()) else { return rates };
    let absorption = Absorption::of_work(numbers.iter().map(|&number| grid.alone(number)).collect());
    // Bags of one submitter share its link by weight.
    let weights_there = |number: usize| -> f64 {
        let is_there = |other: &&usize| bags[**other].submitter.peer == bags[number].submitter.peer;
        numbers.iter().filter(is_there).map(|&other| bags[other].weight).sum()
    };
    let applications: Vec<Application> = numbers
        .iter()
        .map(|&number| {
            let EndlessBag { weight, uplink_bytes_s, .. } = bags[number];
            let part = uplink_bytes_s * weight / weights_there(number);
            Application { weight, uplink_bytes_s: if part > 0.0 { part } else { f64::INFINITY }, entry: 0 }
        })
        .collect();
    let core = Core { nodes: vec![CoreNode { absorption, uplink: None }] };
    let best = core.solve(&of_these, &applications);
    for (&number, rate) in numbers.iter().zip(&best[0]) {
        rates[number] = *rate;
    }
    rates
}

/// What the root answers about the bag of this number, which shares the grid at these rates.
pub(super) fn grant(bags: &[EndlessBag], ratios: &Ratios, grid: &Absorption, rates: &[f64], number: usize) -> Grant {
    let bag = &bags[number];
    let within_uplink = if bag.uplink_bytes_s > 0.0 && ratios.of(number) > 0.0 {
        bag.uplink_bytes_s / ratios.of(number)
    } else {
        f64::INFINITY
    };
    let grid_mops = (0..bags.len()).map(|other| grid.alone(other)).fold(0.0, f64::max);
    let limit = if bag.standing == Standing::Idle {
        Limit::Tasks
    } else if rates[number] <= 0.0 {
        Limit::Machines
    } else if rates[number] >= within_uplink * REACHED {
        Limit::Uplink
    } else if rates.iter().sum::<f64>() >= grid_mops * REACHED {
        Limit::Processors
    } else {
        Limit::Downlinks
    };
    let alone_mops = grid.alone(number).min(within_uplink);
    Grant { ahead: 0, work_mops: rates[number], alone_mops, grid_mops, limit }
}

#[cfg(test)]
mod tests {
    use idlewood_overlay::{Contact, PeerId};

    use super::*;

    fn bag(number: u8) -> EndlessBag {
        EndlessBag {
            bag: BagId([number; 32]),
            submitter: Contact { peer: PeerId([number; 32]), incarnation: 1, address: "/a".into(), nonce: None },
            weight: 1.0,
            task_mops: 10.0,
            task_bytes: 0.0,
            uplink_bytes_s: 0.0,
            standing: Standing::Active,
            waited_s: 0,
        }
    }

    /// The bag's submitter says so itself.
    fn announce(root: &mut Root, bag: EndlessBag, now: Time) {
        let from = bag.submitter.peer;
        root.announced(bag, from, now);
    }

    fn at(second: i64) -> Time {
        Time::from_micros(second * 1_000_000)
    }

    #[test]
    fn the_thirty_third_bag_waits_and_gets_the_first_place_that_is_free() {
        let mut root = Root::default();
        (0..34).for_each(|number| announce(&mut root, bag(number), at(i64::from(number))));
        let is_sharing = |root: &Root, number| root.sharing().iter().any(|bag| bag.bag == BagId([number; 32]));
        assert_eq!(root.sharing().len(), ENDLESS_MAX);
        let ahead = |root: &Root, number| root.ahead(BagId([number; 32])).unwrap();
        assert_eq!([31, 32, 33].map(|number| ahead(&root, number)), [0, 1, 2]);
        // One that says it has waited for longer is before it.
        announce(&mut root, EndlessBag { waited_s: 3, ..bag(40) }, at(34));
        assert_eq!([32, 40, 33].map(|number| ahead(&root, number)), [2, 1, 3]);
        announce(&mut root, EndlessBag { standing: Standing::Gone, ..bag(5) }, at(34));
        assert!(is_sharing(&root, 40) && !is_sharing(&root, 32) && !is_sharing(&root, 5));
        // Those that are not announced again lose their places.
        (0..40).filter(|&number| number != 5).for_each(|number| announce(&mut root, bag(number), at(40)));
        root.forget_silent(at(70));
        assert!(!is_sharing(&root, 40) && is_sharing(&root, 32));
    }

    #[test]
    fn what_others_say_of_a_bag_ends_and_changes_nothing() {
        let mut root = Root::default();
        let other = PeerId([99; 32]);
        let gone = EndlessBag { standing: Standing::Gone, ..bag(1) };
        // A bag that nobody knows has a share until its submitter should have spoken, who is asked.
        assert_eq!(root.announced(bag(1), other, at(0)), Some((bag(1).submitter, false)));
        root.announced(bag(1), other, at(30));
        root.forget_silent(at(36));
        assert!(root.is_empty(), "its submitter has said nothing");
        assert_eq!(root.announced(gone.clone(), other, at(36)), None);
        announce(&mut root, bag(1), at(40));
        let stolen = EndlessBag { submitter: Contact { peer: other, ..bag(1).submitter }, ..bag(1) };
        for said in [gone.clone(), EndlessBag { weight: 0.5, ..bag(1) }, stolen] {
            assert_eq!(root.announced(said, other, at(41)), Some((bag(1).submitter, false)));
            assert_eq!(root.sharing(), [bag(1)]);
        }
        let heavier = EndlessBag { weight: 2.0, ..bag(1) };
        assert_eq!(root.announced(heavier.clone(), bag(1).submitter.peer, at(42)), Some((bag(1).submitter, true)));
        assert_eq!(root.sharing(), [heavier]);
        announce(&mut root, gone, at(43));
        assert!(root.is_empty());
    }

    #[test]
    fn a_new_root_keeps_the_places_of_the_one_before() {
        let mut root = Root::default();
        let table: Vec<EndlessBag> = (100..132).map(bag).collect();
        root.take_over(&table, at(0));
        announce(&mut root, EndlessBag { waited_s: 1 << 40, ..bag(1) }, at(1));
        assert_eq!(root.sharing(), table);
        assert_eq!(root.ahead(BagId([1; 32])), Some(1));
    }

    #[test]
    fn a_bag_without_tasks_takes_nothing_from_the_others() {
        let idle = EndlessBag { standing: Standing::Idle, ..bag(3) };
        let bags = [bag(1), EndlessBag { weight: 3.0, ..bag(2) }, idle, bag(4)];
        let ratios = Ratios::new(vec![0.0; 4]).unwrap();
        // No machine takes the last one.
        let grid = Absorption::of_work(vec![100.0, 100.0, 100.0, 0.0]);
        let rates = best_rates(&bags, &ratios, &grid);
        for (rate, expected) in rates.iter().zip([25.0, 75.0, 0.0, 0.0]) {
            assert!((rate - expected).abs() < 1e-6, "{rates:?}");
        }
        let limits = [0, 2, 3].map(|number| grant(&bags, &ratios, &grid, &rates, number).limit);
        assert_eq!(limits, [Limit::Processors, Limit::Tasks, Limit::Machines]);
    }

    #[test]
    fn a_bag_behind_a_narrow_uplink_leaves_the_rest_to_others() {
        let narrow = EndlessBag { task_bytes: 100.0, uplink_bytes_s: 50.0, ..bag(1) };
        let bags = [narrow, bag(2)];
        let ratios = Ratios::new(bags.iter().map(EndlessBag::ratio).collect()).unwrap();
        let grid = Absorption::of_machine(&ratios, 100.0, f64::INFINITY);
        let rates = best_rates(&bags, &ratios, &grid);
        assert!((rates[0] - 5.0).abs() < 1e-6 && (rates[1] - 95.0).abs() < 1e-6, "{rates:?}");
        let granted = grant(&bags, &ratios, &grid, &rates, 0);
        assert_eq!((granted.limit, granted.alone_mops), (Limit::Uplink, 5.0));
        assert_eq!(grant(&bags, &ratios, &grid, &rates, 1).limit, Limit::Processors);
    }
}
