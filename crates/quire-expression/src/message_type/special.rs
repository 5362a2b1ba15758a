//! Finds the special bytes of JSON strings: quotes, backslashes and control characters. It checks
//! 64 bytes at a time.
//!
//! On x86-64 it uses vector instructions that are part of the architecture. Elsewhere it is a loop
//! without branches over an array of fixed size, from which the compiler makes vector instructions.

/// Bytes that [`specials`] checks together.
pub(super) const BLOCK_SIZE: usize = 64;

/// A bit for each byte of `block` that is a quote, a backslash or a control character, the lowest
/// for the first byte.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code)]
#[inline(always)]
pub(super) fn specials(block: &[u8; BLOCK_SIZE]) -> u64 {
    // SAFETY: every processor of this architecture has SSE2, which is all that the function asks
    // for.
    unsafe { specials_by_sse2(block) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
#[inline]
fn specials_by_sse2(block: &[u8; BLOCK_SIZE]) -> u64 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
    };
    let [quote, backslash, control] =
        [_mm_set1_epi8(b'"' as i8), _mm_set1_epi8(b'\\' as i8), _mm_set1_epi8(0x1F)];
    // Sixteen bits, one for each byte.
    let specials_of = |part: &[u8; 16]| {
        let bytes = u128::from_le_bytes(*part);
        let bytes = _mm_set_epi64x((bytes >> 64) as i64, bytes as i64);
        let is_control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, control), bytes);
        let is_text_end = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash));
        u64::from(_mm_movemask_epi8(_mm_or_si128(is_text_end, is_control)) as u16)
    };
    // A loop takes as long as the work in it.
    let ([first, second, third, fourth], _) = block.as_chunks() else { return portable_specials(block) };
    specials_of(first) | specials_of(second) << 16 | specials_of(third) << 32 | specials_of(fourth) << 48
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use portable_specials as specials;

/// As [`specials`], on every machine.
pub(super) fn portable_specials(block: &[u8; BLOCK_SIZE]) -> u64 {
    let mut flags = [0_u8; BLOCK_SIZE];
    for (flag, byte) in flags.iter_mut().zip(block) {
        *flag = u8::from(*byte == b'"') | u8::from(*byte == b'\\') | u8::from(*byte < 0x20);
    }
    let mut bits = 0;
    for (index, flags) in flags.as_chunks::<8>().0.iter().enumerate() {
        // Eight flags of 0 or 1: the product moves the lowest bit of each byte next to the others
        // at the top.
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
                let expected = u64::from(is_special) << place;
                assert_eq!(specials(&block), expected, "{byte:#x} at {place}");
                assert_eq!(portable_specials(&block), expected, "{byte:#x} at {place}, portable");
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

    proptest::proptest! {
        #[test]
        fn all_ways_agree(block: [u8; BLOCK_SIZE]) {
            proptest::prop_assert_eq!(specials(&block), portable_specials(&block));
        }
    }
}
