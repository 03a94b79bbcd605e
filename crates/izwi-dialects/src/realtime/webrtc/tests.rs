//! A call with a client of the same library, beside strangers, and offers that are none.

use std::time::{Duration, Instant};

use axum::extract::ws::Message;
use futures::{SinkExt as _, StreamExt as _};
use izwi_audio::opus_packets::{OpusPacketEncoder, PACKET_SAMPLES};
use proptest::prelude::*;
use str0m::change::SdpAnswer;
use str0m::channel::ChannelId;
use str0m::media::{Direction, Frequency, MediaKind, MediaTime, Mid};
use str0m::net::{Protocol, Receive};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcConfig};
use tokio::net::UdpSocket;
use tokio::sync::oneshot;

use super::peer::channel_halves;
use super::{Peer, PeerError};

const PATIENCE: Duration = Duration::from_secs(60);

struct Client {
    rtc: Rtc,
    socket: UdpSocket,
    mid: Mid,
    channel: Option<ChannelId>,
    /// Addresses of the server.
    server: Vec<std::net::SocketAddr>,
    events: Vec<String>,
    /// When the packets begin that came, in milliseconds on the clock of RTP.
    packets: Vec<u64>,
}

/// The offer of a client, and the client for its answer.
async fn offer() -> (String, impl FnOnce(&str) -> Client) {
    let mut rtc = RtcConfig::new()
        .set_crypto_provider(str0m::crypto::from_feature_flags().into())
        .build(Instant::now());
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    rtc.add_local_candidate(Candidate::host(socket.local_addr().unwrap(), Protocol::Udp).unwrap());
    let mut changes = rtc.sdp_api();
    let mid = changes.add_media(MediaKind::Audio, Direction::SendRecv, None, None, None);
    changes.add_channel("oai-events".to_owned());
    let (offer, pending) = changes.apply().unwrap();
    let client = move |answer: &str| {
        let server = answer.lines().filter_map(|line| line.strip_prefix("a=candidate:")).filter_map(|line| {
            let parts: Vec<&str> = line.split(' ').collect();
            format!("{}:{}", parts[4], parts[5]).parse().ok()
        });
        let server = server.collect();
        let answer = SdpAnswer::from_sdp_string(answer).unwrap();
        rtc.sdp_api().accept_answer(pending, answer).unwrap();
        Client { rtc, socket, mid, channel: None, server, events: Vec::new(), packets: Vec::new() }
    };
    (offer.to_sdp_string(), client)
}

impl Client {
    /// Runs until `done`.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            self.turn().await;
        }
    }

    async fn turn(&mut self) {
        let deadline = loop {
            match self.rtc.poll_output().unwrap() {
                Output::Timeout(at) => break at,
                Output::Transmit(out) => {
                    // What the network does not take is lost.
                    let _ = self.socket.send_to(&out.contents, out.destination).await;
                }
                Output::Event(Event::ChannelOpen(id, _)) => self.channel = Some(id),
                Output::Event(Event::ChannelData(data)) => {
                    self.events.push(String::from_utf8(data.data).unwrap());
                }
                Output::Event(Event::MediaData(data)) => {
                    self.packets.push(data.time.rebase(Frequency::MILLIS).numer());
                }
                Output::Event(_) => {}
            }
        };
        let mut bytes = vec![0; 2_000];
        let deadline = deadline.min(Instant::now() + Duration::from_millis(20));
        match tokio::time::timeout_at(deadline.into(), self.socket.recv_from(&mut bytes)).await {
            Ok(received) => {
                let (length, source) = received.unwrap();
                let Ok(contents) = bytes[..length].try_into() else { return };
                let destination = self.socket.local_addr().unwrap();
                let receive = Receive { proto: Protocol::Udp, source, destination, contents };
                self.rtc.handle_input(Input::Receive(Instant::now(), receive)).unwrap();
            }
            Err(_) => self.rtc.handle_input(Input::Timeout(Instant::now())).unwrap(),
        }
    }

    fn send(&mut self, event: &str) {
        let channel = self.channel.unwrap();
        self.rtc.channel(channel).unwrap().write(false, event.as_bytes()).unwrap();
    }

    fn say(&mut self, at: u64, packet: &[u8]) {
        let writer = self.rtc.writer(self.mid).unwrap();
        let pt = writer.payload_params().next().unwrap().pt();
        let time = MediaTime::new(at * 960, Frequency::FORTY_EIGHT_KHZ);
        writer.write(pt, Instant::now(), time, packet).unwrap();
    }
}

fn delta(samples: usize) -> Message {
    use base64::Engine as _;
    let audio = base64::engine::general_purpose::STANDARD.encode(vec![7u8; 2 * samples]);
    let place = r#""response_id":"r","item_id":"i","output_index":0,"content_index":0"#;
    Message::text(format!(r#"{{"type":"response.output_audio.delta",{place},"delta":"{audio}"}}"#))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_not_heard_and_garbage_ends_no_call() {
    let (sdp, client) = offer().await;
    let (peer, answer) = Peer::answer(&sdp).await.unwrap();
    let mut client = client(&answer);
    let (sink, incoming, channel) = channel_halves();
    let (mut sink, mut incoming) = (Box::pin(sink), Box::pin(incoming));
    let (ended, end) = oneshot::channel();
    tokio::spawn(async move {
        peer.run(channel, None).await;
        ended.send(()).unwrap();
    });
    sink.send(Message::text(r#"{"type":"session.created","session":{}}"#)).await.unwrap();
    client.until("a channel", |client| client.channel.is_some() && !client.events.is_empty()).await;

    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = client.server.iter().find(|address| address.ip().is_loopback()).unwrap();
    let request = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12]].concat();
    for bytes in [&request[..], &[22, 254, 253, 0, 0][..], &[128, 96, 0, 1][..], &[255; 1_400][..], &[][..]] {
        for _ in 0..100 {
            stranger.send_to(bytes, port).await.unwrap();
        }
    }
    client.send(r#"{"type":"response.cancel"}"#);
    let packet = OpusPacketEncoder::new().unwrap().encode(&[0.25; PACKET_SAMPLES]).unwrap();
    let mut heard = Vec::new();
    for at in 0..50 {
        client.say(at, &packet);
        client.turn().await;
    }
    while heard.len() < 40 {
        tokio::select! {
            Some(Ok(Message::Text(text))) = incoming.next() => heard.push(text.to_string()),
            () = client.turn() => {}
        }
    }
    assert!(heard.contains(&r#"{"type":"response.cancel"}"#.to_owned()), "{heard:?}");
    assert!(heard.iter().filter(|text| text.contains("input_audio_buffer.append")).count() >= 39);

    // 200 ms of an answer are played as ten packets, then it is cleared.
    sink.send(delta(4_800)).await.unwrap();
    sink.send(Message::text(r#"{"type":"response.output_audio.done","response_id":"r"}"#)).await.unwrap();
    let told = |client: &Client, kind: &str| client.events.iter().any(|event| event.contains(kind));
    client.until("the end of the answer", |client| told(client, "output_audio_buffer.stopped")).await;
    assert!(told(&client, "output_audio_buffer.started"));
    client.until("its packets", |client| client.packets.len() >= 9).await;

    // Silence takes its time on the clock of the packets as well, of which the last one of the answer may come behind it.
    let before = client.packets.clone();
    assert!(before.windows(2).all(|pair| pair[1] == pair[0] + 20), "{before:?}");
    let silent = Instant::now();
    while silent.elapsed() < Duration::from_secs(1) {
        client.turn().await;
    }
    let count = client.packets.len();
    sink.send(delta(4_800)).await.unwrap();
    client.until("a second answer", |client| client.packets.len() > count + 3).await;
    let gap = client.packets[count] - client.packets[count - 1];
    assert!((900..5_000).contains(&gap), "{gap} ms");
    drop((sink, incoming));
    let closed = async {
        loop {
            client.turn().await;
        }
    };
    tokio::select! {
        end = end => end.unwrap(),
        () = closed => {}
        () = tokio::time::sleep(PATIENCE) => panic!("the call goes on without its session"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_call_of_a_client_that_is_gone_ends() {
    let (sdp, client) = offer().await;
    let (peer, answer) = Peer::answer(&sdp).await.unwrap();
    let mut client = client(&answer);
    let (_sink, incoming, channel) = channel_halves();
    tokio::spawn(peer.run(channel, None));
    client.until("a channel", |client| client.channel.is_some()).await;
    drop(client);
    let mut incoming = Box::pin(incoming);
    let end = tokio::time::timeout(PATIENCE, incoming.next()).await;
    assert!(end.expect("the call goes on without its client").is_none());
}

#[tokio::test]
async fn events_that_a_session_does_not_take_are_bounded_by_their_bytes() {
    let (_sink, incoming, channel) = channel_halves();
    let mut incoming = Box::pin(incoming);
    let event = "e".repeat(64 << 10);
    let sent = (0..1_000).take_while(|_| channel.send(event.clone())).count();
    assert_eq!(sent, 64);
    drop(incoming.next().await);
    assert!(channel.send(event.clone()) && !channel.send(event));
}

#[tokio::test]
async fn an_offer_that_is_none_is_refused() {
    for sdp in ["", "v=0", "hello", "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n"] {
        assert!(matches!(Peer::answer(sdp).await, Err(PeerError::Offer)), "{sdp}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_damaged_offer_is_answered_or_refused(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut lines: Vec<Vec<u8>> = offer().await.0.split("\r\n").map(|line| line.as_bytes().to_vec()).collect();
            for (line, at, byte) in edits {
                let index = line.index(lines.len());
                match byte % 4 {
                    0 => drop(lines.remove(index)),
                    1 => lines.push(lines[index].clone()),
                    2 => lines[index].truncate(at.index(200)),
                    _ => if let Some(place) = lines[index].get_mut(at.index(60)) { *place = byte },
                }
                if lines.is_empty() { return }
            }
            let sdp = String::from_utf8_lossy(&lines.join(&b"\r\n"[..])).into_owned();
            let _ = Peer::answer(&sdp).await;
        });
    }
}
