// Writers of audio files that no encoder makes: digital silence in FLAC, alone and as a chain of Ogg streams. Tests of
// several crates include this file.
//
// FLAC: RFC 9639 <https://www.rfc-editor.org/rfc/rfc9639>; FLAC in Ogg: <https://xiph.org/flac/ogg_mapping.html>; Ogg:
// RFC 3533 <https://www.rfc-editor.org/rfc/rfc3533>.

/// What a FLAC stream of silence is like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    pub(super) rate_hz: u32,
    pub(super) channels: u8,
    /// Samples of each channel in a frame, 16 to 65,535.
    pub(super) block: u16,
    pub(super) frames: u32,
}

fn crc(bytes: &[u8], width: u32, polynomial: u32) -> u32 {
    let top = 1u32 << (width - 1);
    bytes.iter().fold(0, |mut crc, &byte| {
        crc ^= u32::from(byte) << (width - 8);
        for _ in 0..8 {
            crc = if crc & top == 0 { crc << 1 } else { (crc << 1) ^ polynomial };
        }
        crc
    })
}

fn stream_info(s: Silence) -> Vec<u8> {
    let mut info = [s.block.to_be_bytes(), s.block.to_be_bytes()].concat();
    // The sizes of frames are unknown.
    info.extend([0; 6]);
    let samples = u64::from(s.block) * u64::from(s.frames);
    let format = (u64::from(s.rate_hz) << 44) | (u64::from(s.channels - 1) << 41) | (15 << 36);
    let packed = format | (samples & 0xf_ffff_ffff);
    info.extend(packed.to_be_bytes());
    info.extend([0; 16]);
    info
}

/// The number of a frame, in the extended UTF-8 of FLAC.
fn number(n: u32) -> Vec<u8> {
    let tail = |shift: u32| 0x80 | ((n >> shift) & 0x3f) as u8;
    match n {
        0..0x80 => vec![n as u8],
        0x80..0x800 => vec![0xc0 | (n >> 6) as u8, tail(0)],
        0x800..0x1_0000 => vec![0xe0 | (n >> 12) as u8, tail(6), tail(0)],
        _ => vec![0xf0 | (n >> 18) as u8, tail(12), tail(6), tail(0)],
    }
}

fn frame(s: Silence, n: u32) -> Vec<u8> {
    let mut bytes = vec![0xff, 0xf8, 0x70, ((s.channels - 1) << 4) | 0b1000];
    bytes.extend(number(n));
    bytes.extend((s.block - 1).to_be_bytes());
    bytes.push(crc(&bytes, 8, 0x07) as u8);
    // A constant of 0 for each channel.
    bytes.extend([0; 3].repeat(usize::from(s.channels)));
    let sum = (crc(&bytes, 16, 0x8005) & 0xffff) as u16;
    bytes.extend(sum.to_be_bytes());
    bytes
}

/// A FLAC file.
pub(super) fn silent_flac(s: Silence) -> Vec<u8> {
    let mut file = b"fLaC\x80\x00\x00\x22".to_vec();
    file.extend(stream_info(s));
    (0..s.frames).for_each(|n| file.extend(frame(s, n)));
    file
}

fn page(serial: u32, sequence: u32, flags: u8, granule: u64, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut page = b"OggS\0".to_vec();
    page.push(flags);
    page.extend(granule.to_le_bytes());
    page.extend(serial.to_le_bytes());
    page.extend(sequence.to_le_bytes());
    page.extend([0; 4]);
    // Each packet is shorter than a segment.
    page.push(packets.len() as u8);
    page.extend(packets.iter().map(|packet| packet.len() as u8));
    page.extend(packets.concat());
    let sum = crc(&page, 32, 0x04c1_1db7);
    page[22..26].copy_from_slice(&sum.to_le_bytes());
    page
}

/// An Ogg file that chains one FLAC stream for each element, of at most 200 frames.
pub(super) fn chained_ogg(links: &[Silence]) -> Vec<u8> {
    let mut file = Vec::new();
    for (index, &s) in links.iter().enumerate() {
        let serial = 1 + index as u32;
        let mut head = b"\x7fFLAC\x01\x00\x00\x01fLaC\x00\x00\x00\x22".to_vec();
        head.extend(stream_info(s));
        let comment = [&[0x84, 0, 0, 8][..], &[0; 8]].concat();
        let frames: Vec<Vec<u8>> = (0..s.frames).map(|n| frame(s, n)).collect();
        file.extend(page(serial, 0, 2, 0, &[head]));
        file.extend(page(serial, 1, 0, 0, &[comment]));
        file.extend(page(serial, 2, 4, u64::from(s.block) * u64::from(s.frames), &frames));
    }
    file
}
