//! Counts what passes the sockets: all bytes, those of handshakes, encryption and streams among them, and how many times something is
//! written, which is about the number of packets while a connection is not full.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use libp2p::futures::{AsyncRead, AsyncWrite};

use crate::meters::Meter;
use crate::wire::Traffic;

/// A stream whose bytes are counted.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    traffic: Arc<Traffic>,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, traffic: Arc<Traffic>, meter: Arc<Meter>) -> Self {
        Self { stream, traffic, meter }
    }
}

impl<S> Drop for Metered<S> {
    fn drop(&mut self) {
        self.traffic.meters.closed(&self.meter);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Ok(bytes)) = read {
            self.traffic.wire_bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.traffic.wire_bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
            self.traffic.wire_writes.fetch_add(1, Ordering::Relaxed);
            self.traffic.meters.wrote(&self.meter, bytes as u64);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}
