//! Where a JSON string may not simply go on: at quotes, backslashes and control characters, found in 64 bytes at a time.
//!
//! Written so that the compiler makes vector instructions of it on every machine: a loop without branches over an array of fixed size.

/// Bytes that [`specials`] looks at together.
pub(super) const BLOCK_SIZE: usize = 64;

/// A bit for each byte of `block` that is a quote, a backslash or a control character, the lowest for the first byte.
pub(super) fn specials(block: &[u8; BLOCK_SIZE]) -> u64 {
    let mut flags = [0_u8; BLOCK_SIZE];
    for (flag, byte) in flags.iter_mut().zip(block) {
        *flag = u8::from(*byte == b'"') | u8::from(*byte == b'\\') | u8::from(*byte < 0x20);
    }
    let mut bits = 0;
    for (index, flags) in flags.as_chunks::<8>().0.iter().enumerate() {
        // Eight flags of 0 or 1: the product brings the lowest bit of each byte beside the others at the top.
        let gathered = u64::from_le_bytes(*flags).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= gathered << (8 * index);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_seen_at_every_place() {
        for byte in 0..=u8::MAX {
            let is_special = byte < 0x20 || byte == b'"' || byte == b'\\';
            for place in 0..BLOCK_SIZE {
                let mut block = [b'a'; BLOCK_SIZE];
                block[place] = byte;
                assert_eq!(specials(&block), u64::from(is_special) << place, "{byte:#x} at {place}");
                let mut block = [b'"'; BLOCK_SIZE];
                block[place] = byte;
                assert_eq!(
                    specials(&block),
                    u64::MAX ^ u64::from(!is_special) << place,
                    "{byte:#x} at {place}"
                );
            }
        }
    }
}
