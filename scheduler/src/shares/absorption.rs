//! What a part of the tree can do: as many numbers as there are applications, whatever its size.
//!
//! A part with these numbers is as good as a star of virtual machines, one at each distinct ratio c_j: with sl_j the slope of the absorbed
//! bytes f(t) before c_j, virtual machine j works at sl_j − sl_{j+1} Mop/s and takes c_j bytes for each Mop. Parts next to each other
//! have theirs at the same ratios, so that dividing work among parts is dividing it among the virtual machines.

use super::ratios::Ratios;

/// Work in Mop/s that a part of the tree would do for each application if that were alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Absorption(Vec<f64>);

/// Work of one application, or idleness, that is not divided yet.
struct Atom {
    ratio: f64,
    /// None: idleness.
    application: Option<usize>,
    work: f64,
}

impl Absorption {
    /// Nothing at all.
    pub fn none(ratios: &Ratios) -> Self {
        Self(vec![0.0; ratios.applications()])
    }

    /// A part that would do so much work for each application alone, in Mop/s.
    pub fn of_work(work_mops: Vec<f64>) -> Self {
        Self(work_mops)
    }

    /// Work in Mop/s for each application if it were alone.
    pub fn work_mops(&self) -> &[f64] {
        &self.0
    }

    /// A machine that does so many Mop/s and takes so many bytes/s; infinitely many where its link does not count.
    pub fn of_machine(ratios: &Ratios, speed_mops: f64, link_bytes_s: f64) -> Self {
        Self(vec![speed_mops; ratios.applications()]).through(ratios, link_bytes_s)
    }

    /// The same behind an edge that carries so many bytes/s.
    #[must_use]
    pub fn through(mut self, ratios: &Ratios, edge_bytes_s: f64) -> Self {
        for (application, work) in self.0.iter_mut().enumerate() {
            *work = work.min(ratios.work_within(application, edge_bytes_s));
        }
        self
    }

    /// Joins another part beside this one.
    pub fn add(&mut self, other: &Self) {
        for (sum, work) in self.0.iter_mut().zip(&other.0) {
            *sum += work;
        }
    }

    /// Work in Mop/s for this application if it were alone.
    pub fn alone(&self, application: usize) -> f64 {
        self.0[application]
    }

    /// How full the part is with so many Mop/s of each application: it can do them at once if this is at most 1.
    pub fn load(&self, ratios: &Ratios, work_mops: &[f64]) -> f64 {
        let used = |other: usize| -> f64 {
            work_mops.iter().enumerate().map(|(application, work)| work * ratios.use_of(application, other)).sum()
        };
        let loads = self.0.iter().enumerate().map(|(other, alone)| (used(other), *alone));
        // Nothing on nothing is no load.
        loads.filter(|(used, _)| *used > 0.0).map(|(used, alone)| used / alone).fold(0.0, f64::max)
    }

    /// Divides work, in Mop/s of each application, among parts: each gets what it can do. Work that is more than all
    /// of them can do is scaled down before, so that no link or processor is ever given too much.
    ///
    /// Virtual machines are served by ascending ratio. Each takes a contiguous piece of the work that is left, sorted by ratio with idleness first: as
    /// far up as its bytes allow. That is the shadow of Beiglböck and Juillet (2016), which leaves the others the most they can have.
    pub fn divide(ratios: &Ratios, work_mops: &[f64], parts: &[Self]) -> Vec<Vec<f64>> {
        let mut divided = vec![vec![0.0; ratios.applications()]; parts.len()];
        let mut whole = Self::none(ratios);
        parts.iter().for_each(|part| whole.add(part));
        let scale = whole.load(ratios, work_mops).max(1.0).recip();
        let machines: Vec<Vec<(f64, f64)>> = parts.iter().map(|part| part.virtual_machines(ratios)).collect();
        let sums = whole.virtual_machines(ratios);
        let mut atoms = atoms(ratios, work_mops, scale, sums.iter().map(|(_, work)| work).sum());
        for (number, (ratio, _)) in sums.iter().enumerate() {
            let room: f64 = machines.iter().map(|of_part| of_part[number].1).sum();
            if room <= 0.0 {
                continue;
            }
            let is_last = number + 1 == sums.len();
            for (application, work) in take(&mut atoms, *ratio, if is_last { f64::INFINITY } else { room }) {
                for (part, of_part) in divided.iter_mut().zip(&machines) {
                    part[application] += work * (of_part[number].1 / room);
                }
            }
        }
        divided
    }

    /// (ratio, Mop/s) of each virtual machine, by ascending ratio, one for each distinct ratio.
    fn virtual_machines(&self, ratios: &Ratios) -> Vec<(f64, f64)> {
        let mut slopes: Vec<(f64, f64)> = Vec::with_capacity(self.0.len() + 1);
        let (mut ratio_before, mut bytes_before) = (0.0, 0.0);
        for &application in ratios.ascending() {
            let (ratio, work) = (ratios.of(application), self.0[application]);
            let slope = if slopes.is_empty() {
                work
            } else if ratio > ratio_before {
                (ratio * work - bytes_before) / (ratio - ratio_before)
            } else {
                continue;
            };
            slopes.push((ratio, slope));
            (ratio_before, bytes_before) = (ratio, ratio * work);
        }
        let next = slopes.iter().skip(1).map(|(_, slope)| *slope).chain([0.0]);
        // What absorption of real machines adds up to is concave but for rounding.
        slopes.iter().zip(next).map(|((ratio, slope), next)| (*ratio, (slope - next).max(0.0))).collect()
    }
}

/// All work, and the idleness that fills it up to `room`, by ascending ratio.
fn atoms(ratios: &Ratios, work_mops: &[f64], scale: f64, room: f64) -> Vec<Atom> {
    let busy: f64 = work_mops.iter().sum::<f64>() * scale;
    let idle = Atom { ratio: 0.0, application: None, work: (room - busy).max(0.0) };
    let of = |&application: &usize| Atom {
        ratio: ratios.of(application),
        application: Some(application),
        work: work_mops[application] * scale,
    };
    std::iter::once(idle).chain(ratios.ascending().iter().map(of)).collect()
}

/// Takes work for a virtual machine with so much room: the contiguous piece as far up as `ratio` allows in the mean.
fn take(atoms: &mut [Atom], ratio: f64, room: f64) -> Vec<(usize, f64)> {
    let all: f64 = atoms.iter().map(|atom| atom.work).sum();
    let room = room.min(all);
    let begin = furthest(atoms, ratio, room, all);
    let (mut before, mut taken) = (0.0, Vec::new());
    for atom in atoms {
        let end = before + atom.work;
        let piece = (end.min(begin + room) - before.max(begin)).clamp(0.0, atom.work);
        before = end;
        atom.work -= piece;
        taken.extend(atom.application.map(|application| (application, piece)));
    }
    taken
}

/// Where the furthest piece of this size begins whose bytes are at most `ratio` in the mean; 0 where none has so few.
fn furthest(atoms: &[Atom], ratio: f64, size: f64, all: f64) -> f64 {
    let bytes_below = |place: f64| -> f64 {
        let (mut before, mut bytes) = (0.0, 0.0);
        for atom in atoms {
            bytes += atom.ratio * (place - before).clamp(0.0, atom.work);
            before += atom.work;
        }
        bytes
    };
    let bytes_from = |begin: f64| bytes_below(begin + size) - bytes_below(begin);
    let last = all - size;
    // Between these the bytes of the piece that begins there change evenly.
    let mut bends = vec![0.0, last];
    let mut end = 0.0;
    for atom in atoms {
        end += atom.work;
        bends.extend([end, end - size].into_iter().filter(|bend| (0.0..last).contains(bend)));
    }
    bends.sort_by(f64::total_cmp);
    let limit = ratio * size;
    let (mut best, mut bytes_best) = (0.0, bytes_from(0.0));
    for bend in bends {
        let bytes = bytes_from(bend);
        if bytes > limit {
            let share = (limit - bytes_best) / (bytes - bytes_best);
            return if share > 0.0 { best + (bend - best) * share.min(1.0) } else { best };
        }
        (best, bytes_best) = (bend, bytes);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(of: &[f64]) -> Ratios {
        Ratios::new(of.to_vec()).unwrap()
    }

    #[test]
    fn a_machine_behind_a_link_does_what_both_allow() {
        let ratios = ratios(&[10.0, 0.0, 1.0]);
        let machine = Absorption::of_machine(&ratios, 5.0, 20.0);
        assert_eq!(machine, Absorption(vec![2.0, 5.0, 5.0]));
        assert_eq!(machine.clone().through(&ratios, 2.0), Absorption(vec![0.2, 5.0, 2.0]));
        // 1 Mop/s of the first takes 10 bytes/s, half of the link; 4 of the second fill the processor.
        assert_eq!(machine.load(&ratios, &[1.0, 4.0, 0.0]), 1.0);
        assert_eq!(machine.load(&ratios, &[0.0; 3]), 0.0);
        assert_eq!(Absorption::none(&ratios).load(&ratios, &[0.0, 1.0, 0.0]), f64::INFINITY);
    }

    /// A machine with a wide link gets what has much to fetch, and the other what has little.
    #[test]
    fn work_is_divided_by_what_the_parts_can_fetch() {
        let ratios = ratios(&[8.0, 1.0]);
        let narrow = Absorption::of_machine(&ratios, 4.0, 4.0);
        let wide = Absorption::of_machine(&ratios, 4.0, 1000.0);
        let divided = Absorption::divide(&ratios, &[4.0, 4.0], &[narrow, wide]);
        for (part, expected) in divided.iter().zip([[0.0, 4.0], [4.0, 0.0]]) {
            for (work, expected) in part.iter().zip(expected) {
                assert!((work - expected).abs() < 1e-12, "{divided:?}");
            }
        }
    }

    #[test]
    fn too_much_work_is_scaled_down() {
        let ratios = ratios(&[1.0]);
        let machine = Absorption::of_machine(&ratios, 4.0, 3.0);
        assert_eq!(Absorption::divide(&ratios, &[12.0], &[machine.clone(), machine]), [[3.0], [3.0]]);
        assert_eq!(Absorption::divide(&ratios, &[12.0], &[Absorption::none(&ratios)]), [[0.0]]);
    }
}
