//! The socket of a connection: its write timeout, its place, and the envelopes of errors that the HTTP library sends.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::bare_errors;
use crate::connections::Place;

/// A TCP stream that has a place, and whose writes fail once the peer has read nothing for `limit`. Otherwise a peer that
/// stops reading would hold its connection, and everything the connection holds, forever.
#[derive(Debug)]
pub(crate) struct ServerStream {
    stream: TcpStream,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
    is_waiting: bool,
    /// What is left to send in place of an answer, and the length of that answer.
    replacement: Option<(Bytes, usize)>,
    place: Arc<Place>,
}

impl ServerStream {
    pub(crate) fn new(stream: TcpStream, limit: Duration, place: Arc<Place>) -> Self {
        let deadline = Box::pin(tokio::time::sleep(limit));
        Self { stream, limit, deadline, is_waiting: false, replacement: None, place }
    }

    /// Restarts the timeout on progress, and fails when it has elapsed.
    fn check_progress<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.is_waiting = false;
            return polled;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.limit);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }

    /// Sends the rest of a replacement, and reports the replaced answer as sent.
    fn poll_replacement(
        &mut self,
        (mut rest, replaced): (Bytes, usize),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        while rest.has_remaining() {
            let polled = Pin::new(&mut self.stream).poll_write(context, &rest);
            match self.check_progress(polled, context) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(0)),
                Poll::Ready(Ok(sent)) => rest.advance(sent),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.replacement = Some((rest, replaced));
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(replaced))
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.place.received();
        }
        polled
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let replacement = self.replacement.take().or_else(|| {
            let replacement = bare_errors::replacement(bytes)?;
            Some((replacement.into(), bytes.len()))
        });
        if let Some(replacement) = replacement {
            return self.poll_replacement(replacement, context);
        }
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_progress(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        if let (Some(only), None) = (filled.next(), filled.next()) {
            return self.poll_write(context, only);
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_progress(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
