//! One call: the network's end of a session. One loop over its sockets, its clock and the session's messages.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::Message;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{Sink, Stream, sink, stream};
use izwi_audio::opus_packets::OpusPacketEncoder;
use izwi_server::ws::socket::Socket;
use serde::Deserialize;
use serde_json::{Value, json};
use str0m::change::SdpOffer;
use str0m::channel::{ChannelData, ChannelId};
use str0m::format::Codec;
use str0m::media::{Frequency, MediaData, MediaKind, MediaTime, Mid};
use str0m::net::{Protocol, Receive, Transmit};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig, RtcError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::audio_receiver::AudioReceiver;
use super::client_events::{self, ClientMessage};
use super::interfaces::{Datagram, Sockets};
use super::playout::{Place, PlayoutEvent, PlayoutQueue};
use crate::realtime::events::new_id;

/// How long a client may take to connect after its offer was answered.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long nothing may come of a client, which checks its connection each few seconds: RFC 7675 allows 30 s.
const CONSENT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long what is left for the client may take once its session is over.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a client's events that wait for the session: half a minute of audio, as long as a model may load, and a large event.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// Events that wait for the data channel, beyond which no more are taken from the session.
const MAX_EVENTS: usize = 256;
/// The time of a packet.
const PACKET: Duration = Duration::from_millis(20);
/// Late packets that are sent at once; what is later than that begins anew.
const MAX_LATE_PACKETS: u64 = 5;
/// Packets of a client that came too early are held for this long.
const REORDERING: Duration = Duration::from_millis(40);
/// The clock of Opus in RTP, whatever the rate of the samples: RFC 7587 §4.1.
const CLOCK: Frequency = Frequency::FORTY_EIGHT_KHZ;
/// Units of that clock in a packet.
const PACKET_UNITS: u64 = 960;

/// The messages of a session, seen from the peer.
pub(in crate::realtime) struct SessionChannel {
    to_session: mpsc::UnboundedSender<(Message, OwnedSemaphorePermit)>,
    from_session: mpsc::Receiver<Message>,
    /// Bytes that may still wait for the session.
    room: Arc<Semaphore>,
}

impl SessionChannel {
    /// Sends an event to the session. False if there is no room for it, or the session is over.
    pub(super) fn send(&self, event: String) -> bool {
        let bytes = u32::try_from(event.len()).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&self.room).try_acquire_many_owned(bytes) else { return false };
        self.to_session.send((Message::Text(event.into()), permit)).is_ok()
    }
}

/// The socket of a session, and its other end.
pub(in crate::realtime) fn session_channel() -> (Socket, SessionChannel) {
    let (sink, incoming, channel) = channel_halves();
    (Socket::new(sink, incoming), channel)
}

/// What a session sends to and receives from, and their other end.
pub(super) fn channel_halves()
-> (impl Sink<Message, Error = axum::Error>, impl Stream<Item = Result<Message, axum::Error>>, SessionChannel)
{
    let (to_session, incoming) = mpsc::unbounded_channel::<(Message, OwnedSemaphorePermit)>();
    let (outgoing, from_session) = mpsc::channel(1);
    let sink = sink::unfold(outgoing, |outgoing: mpsc::Sender<Message>, message| async {
        outgoing.send(message).await.map_err(axum::Error::new)?;
        Ok(outgoing)
    });
    let incoming = stream::unfold(incoming, |mut incoming| async {
        // A message that the session has taken gives its room back.
        incoming.recv().await.map(|(message, _)| (Ok(message), incoming))
    });
    let room = Arc::new(Semaphore::new(MAX_WAITING_BYTES));
    (sink, incoming, SessionChannel { to_session, from_session, room })
}

/// Why there is no call, in words.
#[derive(Debug)]
pub(in crate::realtime) enum PeerError {
    /// The client's offer cannot be answered.
    Offer,
    /// This machine has no address, no port or no codec for it.
    Machine(String),
}

/// Why a call is over.
enum End {
    /// The session is.
    Session,
    /// The client is gone, or does not come.
    Client(&'static str),
}

pub(in crate::realtime) struct Peer {
    rtc: Rtc,
    sockets: Sockets,
    audio_receiver: AudioReceiver,
    playout: PlayoutQueue,
    encoder: OpusPacketEncoder,
    /// The audio of both sides, once the client has offered some.
    media: Option<Mid>,
    channel: Option<ChannelId>,
    /// Whether the client has offered a data channel.
    has_channel: bool,
    events: VecDeque<String>,
    is_connected: bool,
    /// Whether speech ends an answer that is played.
    interrupts: bool,
    begun: Instant,
    /// When the client was last heard.
    heard_at: Instant,
    /// When the next packet is to be played.
    due: Instant,
    /// The number of the last one, counted from the beginning of the call, with the packets that silence would have had.
    played: u64,
}

impl Peer {
    /// A peer for an offer, and the answer to it.
    ///
    /// # Errors
    /// The offer cannot be answered, or the machine has no port for it.
    pub(in crate::realtime) async fn answer(sdp: &str) -> Result<(Self, String), PeerError> {
        let failed = |error: &dyn std::error::Error| PeerError::Machine(error.to_string());
        // What the library says of an offer has addresses of its memory.
        let refused = |error: &dyn std::error::Error| {
            tracing::debug!(%error, "an offer cannot be answered");
            PeerError::Offer
        };
        let offer = SdpOffer::from_sdp_string(sdp).map_err(|error| refused(&error))?;
        let begun = Instant::now();
        let config = RtcConfig::new()
            .set_crypto_provider(str0m::crypto::from_feature_flags().into())
            .set_ice_lite(true)
            .clear_codecs()
            .enable_opus(true, false)
            .set_reordering_timeout_audio(Some(REORDERING));
        let mut rtc = config.build(begun);
        let sockets = Sockets::open().await.map_err(|error| failed(&error))?;
        for address in sockets.addresses() {
            let candidate = Candidate::host(address, Protocol::Udp).map_err(|error| failed(&error))?;
            rtc.add_local_candidate(candidate);
        }
        let answer = rtc.sdp_api().accept_offer(offer).map_err(|error| refused(&error))?;
        let peer = Self {
            rtc,
            sockets,
            audio_receiver: AudioReceiver::new().map_err(|error| failed(&error))?,
            playout: PlayoutQueue::default(),
            encoder: OpusPacketEncoder::new().map_err(|error| failed(&error))?,
            media: None,
            channel: None,
            has_channel: sdp.contains("m=application"),
            events: VecDeque::new(),
            is_connected: false,
            interrupts: true,
            begun,
            heard_at: begun,
            due: begun,
            played: 0,
        };
        Ok((peer, answer.to_sdp_string()))
    }

    /// Carries the session until it or the client ends the call. `update` is the first event that it gets.
    pub(in crate::realtime) async fn run(mut self, mut session: SessionChannel, update: Option<Value>) {
        if let Some(update) = update {
            self.take_event(&update.to_string(), &session);
        }
        match self.carry(&mut session).await {
            Ok(End::Session) => self.close().await,
            Ok(End::Client(why)) => tracing::info!(why, "the call is over"),
            Err(error) => tracing::info!(%error, "the call is over"),
        }
    }

    async fn carry(&mut self, session: &mut SessionChannel) -> Result<End, RtcError> {
        loop {
            let deadline = self.settle(session).await?;
            if !self.rtc.is_alive() {
                return Ok(End::Client("the client has left"));
            }
            if !self.is_connected && self.begun.elapsed() > CONNECT_TIMEOUT {
                return Ok(End::Client("the client did not connect in time"));
            }
            if self.is_connected && self.heard_at.elapsed() > CONSENT_TIMEOUT {
                return Ok(End::Client("nothing comes of the client"));
            }
            // A client that is gone causes no event.
            let deadline = deadline.min(Instant::now() + Duration::from_secs(1));
            let may_play = self.is_connected && self.playout.is_ready();
            let takes = !self.playout.is_full() && self.events.len() < MAX_EVENTS;
            tokio::select! {
                Some(datagram) = self.sockets.next() => self.receive(&datagram)?,
                () = tokio::time::sleep_until(deadline.into()) => {
                    self.rtc.handle_input(Input::Timeout(Instant::now()))?;
                }
                () = tokio::time::sleep_until(self.due.into()), if may_play => self.play_packet(),
                message = session.from_session.recv(), if takes => match message {
                    Some(Message::Text(text)) => self.tell(text.as_str(), session),
                    Some(Message::Close(_)) | None => return Ok(End::Session),
                    Some(Message::Binary(_) | Message::Ping(_) | Message::Pong(_)) => {}
                },
            }
        }
    }

    /// Sends what is to be sent and handles what has happened, until nothing is left to do before the time that is returned.
    async fn settle(&mut self, session: &SessionChannel) -> Result<Instant, RtcError> {
        loop {
            self.send_events()?;
            match self.rtc.poll_output()? {
                Output::Timeout(at) => return Ok(at),
                Output::Transmit(Transmit { source, destination, contents, .. }) => {
                    self.sockets.send(source, destination, &contents).await;
                }
                Output::Event(event) => self.handle(event, session),
            }
        }
    }

    fn receive(&mut self, datagram: &Datagram) -> Result<(), RtcError> {
        let Datagram { source, destination, bytes } = datagram;
        // What is no datagram of WebRTC is none of this call.
        let Ok(contents) = bytes.as_slice().try_into() else { return Ok(()) };
        let receive = Receive { proto: Protocol::Udp, source: *source, destination: *destination, contents };
        let input = Input::Receive(Instant::now(), receive);
        if !self.rtc.accepts(&input) {
            return Ok(());
        }
        self.heard_at = Instant::now();
        self.rtc.handle_input(input)
    }

    fn handle(&mut self, event: Event, session: &SessionChannel) {
        match event {
            Event::Connected => self.is_connected = true,
            Event::MediaAdded(media) if media.kind == MediaKind::Audio && self.media.is_none() => {
                self.media = Some(media.mid);
            }
            Event::MediaData(MediaData { time, data, params, .. }) if params.spec().codec == Codec::Opus => {
                let at = time.rebase(CLOCK).numer();
                if let Some(event) = self.audio_receiver.receive(at, &data)
                    && !session.send(event)
                {
                    tracing::debug!("the session does not take what is said");
                }
            }
            Event::ChannelOpen(id, _) if self.channel.is_none() => self.channel = Some(id),
            Event::ChannelData(ChannelData { binary: false, data, .. }) => {
                self.take_event(&String::from_utf8_lossy(&data), session);
            }
            Event::ChannelClose(id) if self.channel == Some(id) => self.rtc.disconnect(),
            _ => {}
        }
    }

    /// Takes an event of the client.
    fn take_event(&mut self, text: &str, session: &SessionChannel) {
        match client_events::read(text) {
            ClientMessage::Clear => self.clear_playout(session),
            ClientMessage::Session(event) => {
                if !session.send(event) {
                    // Nobody waits so long for a model; a lost event would not be noticed.
                    tracing::warn!("the client sends more events than its session takes");
                    self.rtc.disconnect();
                }
            }
        }
    }

    /// Takes an event of the session.
    fn tell(&mut self, text: &str, session: &SessionChannel) {
        let kind = serde_json::from_str::<Head<'_>>(text).map(|head| head.kind).unwrap_or_default();
        match &*kind {
            "response.output_audio.delta" => return self.push(text),
            "response.output_audio.done" | "response.done" => {
                if let Ok(done) = serde_json::from_str::<Done>(text) {
                    self.playout.finish(done.response_id.as_deref().unwrap_or(&done.response.id));
                }
            }
            "session.created" | "session.updated" => {
                let event = serde_json::from_str::<Value>(text).unwrap_or_default();
                let detection = &event["session"]["audio"]["input"]["turn_detection"];
                self.interrupts = detection["interrupt_response"].as_bool().unwrap_or(false);
            }
            "input_audio_buffer.speech_started" if self.interrupts => {
                self.tell_client(text.to_owned());
                return self.clear_playout(session);
            }
            _ => {}
        }
        self.tell_client(text.to_owned());
    }

    fn tell_client(&mut self, event: String) {
        if self.has_channel {
            self.events.push_back(event);
        }
    }

    fn push(&mut self, text: &str) {
        // Without audio of the client's there is nobody to hear it.
        let Some((delta, bytes)) = serde_json::from_str::<Delta>(text)
            .ok()
            .filter(|_| self.media.is_some())
            .and_then(|delta| STANDARD.decode(&delta.delta).ok().map(|bytes| (delta, bytes)))
        else {
            return;
        };
        let was_ready = self.playout.is_ready();
        let samples = bytes.as_chunks().0.iter().map(|pair| f32::from(i16::from_le_bytes(*pair)) / 32_768.0);
        self.playout.push(delta.place(), samples);
        if !was_ready {
            self.due = self.due.max(Instant::now());
        }
    }

    /// Plays the next packet.
    fn play_packet(&mut self) {
        let now = Instant::now();
        let (packet, events) = self.playout.next();
        for event in events {
            let (kind, response_id) = match event {
                PlayoutEvent::Started(response_id) => ("output_audio_buffer.started", response_id),
                PlayoutEvent::Stopped(response_id) => ("output_audio_buffer.stopped", response_id),
            };
            self.tell_buffer(kind, &response_id);
        }
        let (Some(packet), Some(mid)) = (packet, self.media) else { return };
        // Silence takes its time on the clock of the packets, which the jitter buffer of the client goes by.
        let by_clock = ((now - self.begun).as_millis() / PACKET.as_millis()) as u64;
        if by_clock > self.played + MAX_LATE_PACKETS {
            (self.played, self.due) = (by_clock, now);
        } else {
            self.played += 1;
        }
        self.due += PACKET;
        let time = MediaTime::new(self.played * PACKET_UNITS, CLOCK);
        let Ok(packet) = self.encoder.encode(&packet) else { return };
        let Some(writer) = self.rtc.writer(mid) else { return };
        let opus = writer.payload_params().find(|params| params.spec().codec == Codec::Opus);
        let Some(pt) = opus.map(|params| params.pt()) else { return };
        if let Err(error) = writer.write(pt, now, time, packet) {
            tracing::debug!(%error, "a packet was not sent");
        }
    }

    /// Stops what is played, tells the client, and tells the session how much of it was heard.
    fn clear_playout(&mut self, session: &SessionChannel) {
        let mut told = None;
        for truncated in self.playout.clear() {
            let Place { response_id, item_id, content_index } = truncated.place;
            let truncate = json!({
                "type": "conversation.item.truncate",
                "item_id": item_id,
                "content_index": content_index,
                "audio_end_ms": truncated.audio_end_ms,
            });
            // A session that takes nothing is about to end.
            let _ = session.send(truncate.to_string());
            if told.as_ref() != Some(&response_id) {
                self.tell_buffer("output_audio_buffer.cleared", &response_id);
                told = Some(response_id);
            }
        }
    }

    fn tell_buffer(&mut self, kind: &str, response_id: &str) {
        let event = json!({"type": kind, "event_id": new_id("event"), "response_id": response_id});
        self.tell_client(event.to_string());
    }

    fn send_events(&mut self) -> Result<(), RtcError> {
        let Some(mut channel) = self.channel.and_then(|id| self.rtc.channel(id)) else { return Ok(()) };
        while let Some(event) = self.events.front() {
            if !channel.write(false, event.as_bytes())? {
                break;
            }
            self.events.pop_front();
        }
        Ok(())
    }

    /// Sends what is left, and ends the call.
    async fn close(mut self) {
        let (_, session) = session_channel();
        let closing = async {
            while self.rtc.is_alive() && !self.events.is_empty() && self.channel.is_some() {
                let deadline = self.settle(&session).await?;
                tokio::select! {
                    Some(datagram) = self.sockets.next() => self.receive(&datagram)?,
                    () = tokio::time::sleep_until(deadline.into()) => {
                        self.rtc.handle_input(Input::Timeout(Instant::now()))?;
                    }
                }
            }
            self.settle(&session).await?;
            self.rtc.close()?;
            self.settle(&session).await
        };
        // A client that is gone needs nothing.
        drop(tokio::time::timeout(CLOSE_TIMEOUT, closing).await);
    }
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Delta {
    response_id: String,
    item_id: String,
    content_index: u64,
    delta: String,
}

impl Delta {
    fn place(self) -> Place {
        let Self { response_id, item_id, content_index, .. } = self;
        Place { response_id, item_id, content_index }
    }
}

#[derive(Deserialize)]
struct Done {
    response_id: Option<String>,
    #[serde(default)]
    response: DoneResponse,
}

#[derive(Default, Deserialize)]
struct DoneResponse {
    #[serde(default)]
    id: String,
}
