//! Owners, as a centre sees them that knows who is at which machine now, and not for how long: what has begun there stands still, and is
//! begun anew elsewhere in its turn at once, since nobody knows when the owner leaves. If they leave before that, it goes on; if after,
//! both run. The first end counts, and stops the other run.

use super::{Begun, Centre, Lost, Occurrence};

impl Centre<'_> {
    /// Plans the first visit of a machine's owner that begins from now on in the machine's present session.
    pub(super) fn plan_visit(&mut self, machine: usize) {
        let description = &self.instance.machines[machine];
        let session = description.sessions[self.begun_sessions[machine] - 1];
        let visit = description.visits.get(description.visits.partition_point(|visit| visit.from < self.now));
        if let Some(visit) = visit.filter(|visit| visit.from < session.to).copied() {
            self.plan(visit.from, Occurrence::OwnerComes { machine });
            self.plan(visit.to, Occurrence::OwnerLeaves { machine });
        }
    }

    pub(super) fn owner_comes(&mut self, machine: usize) {
        let description = &self.instance.machines[machine];
        self.visited[machine] = true;
        self.up_mops -= description.speed_mops * f64::from(description.slots);
        let mut waits = false;
        for index in self.slots_of(machine) {
            self.idle.remove(&self.idle_key(index));
            let now = self.now;
            let slot = &mut self.slots[index];
            slot.serial += 1;
            let running = slot.running.take().map(|run| run.pause(now));
            let held: Vec<Begun> = running.into_iter().chain(slot.frozen.drain(..)).collect();
            for run in &held {
                if !self.goes_on_elsewhere(run) {
                    self.queue[run.bag].begun -= 1;
                    self.queue[run.bag].waiting += 1;
                    self.lost[run.bag].push(Lost { index: run.index, kept: None });
                    self.copied.insert((run.bag, run.index));
                    waits = true;
                }
            }
            self.slots[index].held = held;
        }
        if waits || self.policy.replans {
            self.replan();
        }
    }

    pub(super) fn owner_leaves(&mut self, machine: usize) {
        // The machine may have gone down at this very moment.
        if !std::mem::take(&mut self.visited[machine]) {
            return;
        }
        let description = &self.instance.machines[machine];
        self.up_mops += description.speed_mops * f64::from(description.slots);
        for index in self.slots_of(machine) {
            let held = std::mem::take(&mut self.slots[index].held);
            for run in &held {
                let lost = &mut self.lost[run.bag];
                if let Some(place) = lost.iter().position(|lost| lost.index == run.index) {
                    lost.remove(place);
                    self.queue[run.bag].waiting -= 1;
                    self.queue[run.bag].begun += 1;
                }
            }
            let mut held = held.into_iter();
            match held.next() {
                Some(first) => self.go_on(index, Begun { since: self.now, ..first }),
                None => self.set_idle(index),
            }
            self.slots[index].frozen.extend(held);
        }
        self.plan_visit(machine);
        if self.policy.replans { self.replan() } else { self.fill() }
    }

    /// Whether a task that has just stopped at a slot runs, or is frozen for another bag, at another.
    pub(super) fn goes_on_elsewhere(&self, run: &Begun) -> bool {
        self.copied.contains(&(run.bag, run.index))
            && self.slots.iter().any(|slot| slot.running.iter().chain(&slot.frozen).any(|other| other.is_same(run)))
    }

    /// A task has ended: its other runs stop.
    pub(super) fn stop_copies(&mut self, ended: &Begun) {
        if !self.copied.remove(&(ended.bag, ended.index)) {
            return;
        }
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            slot.held.retain(|run| !run.is_same(ended));
            slot.frozen.retain(|run| !run.is_same(ended));
            if slot.running.take_if(|run| run.is_same(ended)).is_some() {
                slot.serial += 1;
                self.freed.push(index);
            }
        }
    }
}
