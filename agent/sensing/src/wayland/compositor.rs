//! A scripted compositor for tests, with one seat and ext-idle-notify-v1.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use wayland_protocols::ext::idle_notify::v1::server::ext_idle_notification_v1::ExtIdleNotificationV1;
use wayland_protocols::ext::idle_notify::v1::server::ext_idle_notifier_v1::{self, ExtIdleNotifierV1};
use wayland_server::protocol::wl_seat::{self, WlSeat};
use wayland_server::{Client, DataInit, Dispatch, Display, DisplayHandle, GlobalDispatch, New};

/// A notice to its clients.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tell {
    Idled,
    Resumed,
}

/// A client's request: whether inhibitors count, and after how many milliseconds.
pub(super) type Asked = (bool, u32);

/// Runs until it is dropped.
pub(super) struct Compositor {
    tell: Option<mpsc::Sender<Tell>>,
    pub(super) asked: mpsc::Receiver<Asked>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    notifications: Vec<ExtIdleNotificationV1>,
    asked: mpsc::Sender<Asked>,
}

impl Compositor {
    /// Listens at `socket`, with this version of ext-idle-notify, or without it.
    pub(super) fn start(socket: &Path, version: Option<u32>) -> Self {
        let listener = UnixListener::bind(socket).expect("our directory");
        listener.set_nonblocking(true).expect("our socket");
        let (tell, told) = mpsc::channel();
        let (asked, asking) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut display = Display::<State>::new().expect("a display");
            let mut handle = display.handle();
            handle.create_global::<State, WlSeat, ()>(1, ());
            version.map(|version| handle.create_global::<State, ExtIdleNotifierV1, ()>(version, ()));
            let mut state = State { notifications: Vec::new(), asked };
            loop {
                if let Ok((client, _)) = listener.accept() {
                    handle.insert_client(client, Arc::new(())).expect("a client");
                }
                display.dispatch_clients(&mut state).expect("well-behaved clients");
                match told.recv_timeout(Duration::from_millis(2)) {
                    Ok(Tell::Idled) => state.notifications.iter().for_each(ExtIdleNotificationV1::idled),
                    Ok(Tell::Resumed) => state.notifications.iter().for_each(ExtIdleNotificationV1::resumed),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                }
                display.flush_clients().expect("well-behaved clients");
            }
        });
        Self { tell: Some(tell), asked: asking, thread: Some(thread) }
    }

    pub(super) fn tell(&self, what: Tell) {
        self.tell.as_ref().expect("it runs").send(what).expect("it runs");
    }
}

impl Drop for Compositor {
    fn drop(&mut self) {
        self.tell = None;
        self.thread.take().expect("it runs").join().expect("no panic");
    }
}

impl GlobalDispatch<WlSeat, ()> for State {
    fn bind(_: &mut Self, _: &DisplayHandle, _: &Client, seat: New<WlSeat>, (): &(), init: &mut DataInit<'_, Self>) {
        init.init(seat, ());
    }
}

impl Dispatch<WlSeat, ()> for State {
    fn request(
        _: &mut Self,
        _: &Client,
        _: &WlSeat,
        _: wl_seat::Request,
        (): &(),
        _: &DisplayHandle,
        _: &mut DataInit<'_, Self>,
    ) {
    }
}

impl GlobalDispatch<ExtIdleNotifierV1, ()> for State {
    fn bind(
        _: &mut Self,
        _: &DisplayHandle,
        _: &Client,
        notifier: New<ExtIdleNotifierV1>,
        (): &(),
        init: &mut DataInit<'_, Self>,
    ) {
        init.init(notifier, ());
    }
}

impl Dispatch<ExtIdleNotifierV1, ()> for State {
    fn request(
        state: &mut Self,
        _: &Client,
        _: &ExtIdleNotifierV1,
        request: ext_idle_notifier_v1::Request,
        (): &(),
        _: &DisplayHandle,
        init: &mut DataInit<'_, Self>,
    ) {
        let (id, asked) = match request {
            ext_idle_notifier_v1::Request::GetIdleNotification { id, timeout, .. } => (id, (true, timeout)),
            ext_idle_notifier_v1::Request::GetInputIdleNotification { id, timeout, .. } => (id, (false, timeout)),
            _ => return,
        };
        state.notifications.push(init.init(id, ()));
        state.asked.send(asked).expect("the test listens");
    }
}

impl Dispatch<ExtIdleNotificationV1, ()> for State {
    fn request(
        _: &mut Self,
        _: &Client,
        _: &ExtIdleNotificationV1,
        _: <ExtIdleNotificationV1 as wayland_server::Resource>::Request,
        (): &(),
        _: &DisplayHandle,
        _: &mut DataInit<'_, Self>,
    ) {
    }
}
