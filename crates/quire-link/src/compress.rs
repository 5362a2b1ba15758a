//! Records that are compressed on their way (docs/protocol.md, *Links between instances*).
//!
//! Every frame is compressed separately, because a destination takes in one frame at a time.

use std::cell::RefCell;

use zstd::bulk::{Compressor, Decompressor};

use quire_wire::link::{BadFrame, Compressed};

/// A smaller body is not compressed: the bytes that this would spare are not worth the time.
const BODY_SIZE_MIN: usize = 512;

/// zstd's fastest ordinary level. A link has more records to compress than time.
const LEVEL: i32 = 1;

const LZ4: u8 = 1;
const ZSTD: u8 = 2;

/// How records are made smaller on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// LZ4: little time.
    Lz4,
    /// Zstandard: smaller, and more time.
    Zstd,
}

/// The number of the algorithm and the compressed body; `None` when it would not be smaller.
pub fn compress(algorithm: Algorithm, body: &[u8]) -> Option<(u8, Vec<u8>)> {
    if body.len() < BODY_SIZE_MIN {
        return None;
    }
    let (algorithm, compressed) = match algorithm {
        Algorithm::Lz4 => (LZ4, lz4_flex::block::compress(body)),
        Algorithm::Zstd => (ZSTD, zstd_compress(body)?),
    };
    (compressed.len() < body.len()).then_some((algorithm, compressed))
}

/// The body of a compressed frame of records, which has at most `size_max` bytes.
///
/// # Errors
/// The algorithm is unknown, the size is 0, wrong or above `size_max`, or the bytes are not a
/// compressed body.
pub fn decompress(compressed: Compressed<'_>, size_max: usize) -> Result<Vec<u8>, BadFrame> {
    let Compressed { algorithm, size, bytes } = compressed;
    let size = size as usize;
    if size == 0 || size > size_max {
        return Err(BadFrame("the size of a compressed frame"));
    }
    let body = match algorithm {
        LZ4 => lz4_flex::block::decompress(bytes, size).ok(),
        ZSTD => zstd_decompress(bytes, size),
        _ => return Err(BadFrame("an unknown compression")),
    };
    body.filter(|body| body.len() == size).ok_or(BadFrame("a compressed frame that cannot be read"))
}

// The memory of zstd takes longer to make than a frame takes to compress, so each thread keeps it.

fn zstd_compress(body: &[u8]) -> Option<Vec<u8>> {
    thread_local!(static KEPT: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) });
    KEPT.with_borrow_mut(|kept| {
        let made = kept.take().map_or_else(|| Compressor::new(LEVEL), Ok);
        kept.insert(made.ok()?).compress(body).ok()
    })
}

fn zstd_decompress(bytes: &[u8], size: usize) -> Option<Vec<u8>> {
    thread_local!(static KEPT: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) });
    KEPT.with_borrow_mut(|kept| {
        let made = kept.take().map_or_else(Decompressor::new, Ok);
        kept.insert(made.ok()?).decompress(bytes, size).ok()
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use quire_wire::link::{Frame, next_frame};

    fn read(algorithm: u8, bytes: &[u8], size: u32, size_max: usize) -> Result<Vec<u8>, BadFrame> {
        decompress(Compressed { algorithm, size, bytes }, size_max)
    }

    const BOTH: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];

    #[test]
    fn a_body_that_would_not_be_smaller_is_not_compressed() {
        for compression in BOTH {
            assert_eq!(compress(compression, &[b'x'; BODY_SIZE_MIN - 1]), None);
            let random: Vec<u8> =
                (0..2_000u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
            let noise: Vec<u8> = random
                .iter()
                .scan(1u64, |state, byte| {
                    *state = (*state ^ u64::from(*byte)).wrapping_mul(0xd129_0d3a_7c5f_3b11).rotate_left(29);
                    Some((*state >> 32) as u8)
                })
                .collect();
            assert_eq!(compress(compression, &noise), None);
        }
    }

    #[test]
    fn a_size_above_the_limit_is_refused_before_anything_is_decompressed() {
        for compression in BOTH {
            let (algorithm, bytes) = compress(compression, &[b'x'; 100_000]).unwrap();
            let error = read(algorithm, &bytes, 100_000, 99_999).unwrap_err();
            assert_eq!(error, BadFrame("the size of a compressed frame"));
            assert!(read(algorithm, &bytes, 100_000, 100_000).is_ok());
            for wrong in [0, 99_999, 100_001] {
                assert!(read(algorithm, &bytes, wrong, 1_000_000).is_err());
            }
        }
        assert!(read(3, b"x", 1, 10).is_err());
        assert!(read(ZSTD, b"", 0, 10).is_err());
    }

    /// Another version of the library may compress in another way, and must read what this one has
    /// written: the body has the same 20 records as the bytes of `records` in the file have one.
    #[test]
    fn the_compressed_frame_of_the_golden_file_is_read() {
        let golden = include_str!("../../quire-wire/tests/golden/link-frames.txt");
        let bytes = |name: &str| {
            let line = golden.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let digits = line.unwrap().replace(' ', "");
            let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            (0..digits.len()).step_by(2).map(byte).collect::<Vec<_>>()
        };
        let (compressed, records) = (bytes("compressed"), bytes("records"));
        let Ok(Some((Frame::Compressed(compressed), _))) = next_frame(&compressed, 1000) else { panic!() };
        let body = decompress(compressed, 10_000).unwrap();
        // A position and a mark, and the record.
        let (head, one) = records[5..].split_at(8 + 32);
        assert_eq!(body, [head, &one.repeat(20)].concat());
    }

    proptest! {
        #[test]
        fn a_body_comes_out_as_it_went_in(part in vec(any::<u8>(), 1..300), times in 1usize..300) {
            let body = part.repeat(times);
            for compression in BOTH {
                if let Some((algorithm, bytes)) = compress(compression, &body) {
                    prop_assert!(bytes.len() < body.len());
                    prop_assert_eq!(read(algorithm, &bytes, body.len() as u32, body.len()), Ok(body.clone()));
                }
            }
        }

        #[test]
        fn any_bytes_are_decompressed_or_refused(algorithm in 0u8..4, bytes in vec(any::<u8>(), 0..200), size in 0u32..5_000) {
            if let Ok(body) = read(algorithm, &bytes, size, 4_000) {
                prop_assert!(body.len() as u32 == size && size <= 4_000);
            }
        }
    }
}
