//! Threads that run shards beside the calling one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use idlewood_overlay::Time;

use super::shard::Shard;
use super::surroundings::Surroundings;

/// A shard that a thread is to run up to a moment.
struct Order {
    shard: Box<Shard>,
    around: Arc<Surroundings>,
    end: Time,
}

/// One thread for each shard but the first, which the caller runs.
pub(super) struct Pool {
    threads: Vec<(SyncSender<Order>, Receiver<Box<Shard>>)>,
}

impl Pool {
    /// Starts so many threads; they end when the pool is dropped.
    pub(super) fn new<'scope>(scope: &'scope Scope<'scope, '_>, threads: usize) -> Self {
        let thread = || {
            let (give, orders) = sync_channel::<Order>(1);
            let (done, take) = sync_channel(1);
            scope.spawn(move || {
                for Order { mut shard, around, end } in orders {
                    shard.process(&around, end);
                    drop(around);
                    if done.send(shard).is_err() {
                        return;
                    }
                }
            });
            (give, take)
        };
        Self { threads: (0..threads).map(|_| thread()).collect() }
    }

    /// Runs all shards up to a moment.
    ///
    /// # Panics
    /// When a thread has panicked.
    pub(super) fn process(&self, shards: &mut Vec<Box<Shard>>, around: &Arc<Surroundings>, end: Time) {
        let panicked = "the thread of this shard has panicked";
        let mut others = shards.drain(1..).collect::<Vec<_>>().into_iter();
        for ((give, _), shard) in self.threads.iter().zip(&mut others) {
            let order = Order { shard, around: Arc::clone(around), end };
            assert!(give.send(order).is_ok(), "{panicked}");
        }
        shards[0].process(around, end);
        shards.extend(self.threads.iter().map(|(_, take)| take.recv().expect(panicked)));
    }
}
