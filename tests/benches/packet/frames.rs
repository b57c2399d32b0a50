//! The one frame of the benches.

/// 64 bytes: IPv4, UDP to port 53, from 10.1.2.3 to 192.0.2.1.
pub fn udp() -> Vec<u8> {
    let mut frame = vec![0u8; 64];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&50u16.to_be_bytes());
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[10, 1, 2, 3]);
    frame[30..34].copy_from_slice(&[192, 0, 2, 1]);
    frame[34..36].copy_from_slice(&40_000u16.to_be_bytes());
    frame[36..38].copy_from_slice(&53u16.to_be_bytes());
    frame[38..40].copy_from_slice(&30u16.to_be_bytes());
    frame
}
