//! The root: what this peer last heard of it, or tells as the root, and what its children are told of it.

use std::sync::Arc;

use crate::local::Local;
use crate::message::RootInfo;

/// The root as this peer knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Root {
    info: Option<Arc<RootInfo>>,
    /// Digest of `info`; 0 is none.
    digest: u32,
    /// Stamp of the last information that this peer told as the root.
    stamp: u64,
    /// The payload that this peer tells if it is the root.
    payload: Vec<u8>,
    /// What children are to be told: digest of the root, depth of our router.
    announced: (u32, Option<u32>),
    /// Rises with every change of `announced`.
    edition: u32,
}

impl Root {
    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self) {
        debug_assert_eq!(self.info.is_some(), self.digest != 0, "the digest of {:?}", self.info);
        debug_assert!(self.edition > 0 || self.announced == (0, None), "told without a number");
    }

    pub(crate) fn info(&self) -> Option<&Arc<RootInfo>> {
        self.info.as_ref()
    }

    pub(crate) fn digest(&self) -> u32 {
        self.digest
    }

    /// What children are to be told, as of the last [`Self::announce`].
    pub(crate) fn announced(&self) -> (u32, Option<u32>) {
        self.announced
    }

    pub(crate) fn edition(&self) -> u32 {
        self.edition
    }

    pub(crate) fn set_payload(&mut self, payload: Vec<u8>) {
        self.payload = payload;
    }

    /// What a child is to be told now: digest of the root, and this depth of our router.
    pub(crate) fn announce(&mut self, depth: Option<u32>) -> (u32, Option<u32>) {
        let announced = (self.digest, depth);
        self.edition = self.edition.saturating_add(u32::from(announced != self.announced));
        self.announced = announced;
        announced
    }

    /// Takes over what the root announces.
    pub(crate) fn take(&mut self, local: &mut Local, info: Arc<RootInfo>) {
        if self.info.as_ref() != Some(&info) {
            self.set(local, info);
        }
    }

    /// This peer is the root of a tree with so many leaves and so high.
    pub(crate) fn derive(&mut self, local: &mut Local, count: u64, height: u32) {
        let is_current = self.info.as_ref().is_some_and(|info| {
            (&info.contact, info.count, info.height, info.stamp) == (&local.me, count, height, self.stamp)
                && info.payload == self.payload
        });
        if is_current {
            return;
        }
        self.stamp += 1;
        let (contact, stamp, payload) = (local.me.clone(), self.stamp, self.payload.clone());
        self.set(local, Arc::new(RootInfo { contact, stamp, count, height, payload }));
    }

    fn set(&mut self, local: &mut Local, info: Arc<RootInfo>) {
        self.digest = info.digest();
        self.info = Some(info);
        local.outbox.notices.root = true;
    }
}
