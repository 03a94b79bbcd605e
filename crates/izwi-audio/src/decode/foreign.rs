//! Containers that are recognised and not read. The demuxers search a file for the start of a stream, and would take
//! some bytes in the middle of such a container for one.

/// First bytes of a container, and its name.
const OPENINGS: [(&[u8], &str); 10] = [
    (&[0x00, 0x00, 0x01, 0xba], "MPEG-PS"),
    (&[0x30, 0x26, 0xb2, 0x75, 0x8e, 0x66, 0xcf, 0x11], "ASF (wma)"),
    (b"FLV\x01", "FLV"),
    (b"#!AMR", "AMR"),
    (b".RMF", "RealMedia"),
    (b"wvpk", "WavPack"),
    (b"MAC ", "Monkey's Audio"),
    (b"TTA1", "TTA"),
    (b"MPCK", "Musepack"),
    (b"DSD ", "DSF"),
];

/// Sizes of the packets of an MPEG transport stream: plain, with a time code in front, with error correction after.
/// ISO/IEC 13818-1 §2.4.3.2.
const PACKET_BYTES: [usize; 3] = [188, 192, 204];
const SYNC_BYTE: u8 = 0x47;
/// Packets in a row that prove a transport stream, or all of a shorter file, if there are three.
const PACKETS: usize = 6;

/// The name of the container in `file` if it is one of those that are not read.
pub(super) fn name(file: &[u8]) -> Option<&'static str> {
    let is_avi = file.starts_with(b"RIFF") && file.get(8..12) == Some(b"AVI ");
    let found = OPENINGS.iter().find(|(opening, _)| file.starts_with(opening)).map(|(_, name)| *name);
    found.or(is_avi.then_some("AVI")).or(is_transport_stream(file).then_some("MPEG-TS"))
}

/// Whether packets of a transport stream begin within the first bytes.
fn is_transport_stream(file: &[u8]) -> bool {
    PACKET_BYTES.iter().any(|&size| {
        (0..size.min(file.len())).any(|start| {
            let mut packets = file[start..].iter().step_by(size).take(PACKETS);
            let count = packets.len();
            count >= 3 && packets.all(|&byte| byte == SYNC_BYTE)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport_stream(size: usize, lead: usize, packets: usize) -> Vec<u8> {
        let mut file = vec![0u8; lead];
        for packet in 0..packets {
            let mut bytes = vec![(packet % 40) as u8; size];
            bytes[0] = SYNC_BYTE;
            file.extend(bytes);
        }
        file
    }

    #[test]
    fn transport_streams_are_found_at_any_phase() {
        for size in PACKET_BYTES {
            for (lead, packets) in [(0, 3), (0, 50), (4, 50), (100, 7)] {
                assert_eq!(name(&transport_stream(size, lead, packets)), Some("MPEG-TS"), "{size} {lead}");
            }
        }
        assert_eq!(name(&transport_stream(188, 0, 2)), None);
        assert_eq!(name(&transport_stream(189, 0, 50)), None);
        assert_eq!(name(b""), None);
    }

    #[test]
    fn other_containers_are_named() {
        assert_eq!(name(b"RIFF\0\0\0\0AVI LIST"), Some("AVI"));
        assert_eq!(name(b"#!AMR\n"), Some("AMR"));
        assert_eq!(name(b"RIFF\0\0\0\0WAVEfmt "), None);
    }
}
