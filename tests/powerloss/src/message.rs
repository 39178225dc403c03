//! Bodies that say which message they are, so that any message found can be judged alone.

/// Bytes of the number in front of a body.
const NUMBER: usize = 8;
/// Sizes of bodies beside the number, enough to check it by: small ones, some larger than a block, few than a batch.
const SIZES: [usize; 12] = [
    4, 8, 10, 100, 100, 1000, 1000, 1000, 3000, 4096, 20_000, 300_000,
];

/// A message, by the round, the producer and the send.
pub fn number(round: u32, producer: u32, send: u32) -> u64 {
    (u64::from(round) << 40) | (u64::from(producer & 0xff) << 32) | u64::from(send)
}

/// The body of a message.
pub fn body(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let pick = random.usize(..SIZES.len() * 8);
    // The largest is rare.
    let size = SIZES[if pick == 0 {
        SIZES.len() - 1
    } else {
        pick % (SIZES.len() - 1)
    }];
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(NUMBER + size, 0);
    random.fill(&mut bytes[NUMBER..]);
    bytes
}

/// Which message a body is; `None` if it is none whole.
pub fn identify(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(bytes.get(..NUMBER)?.try_into().ok()?);
    (body(number) == bytes).then_some(number)
}

/// A key to find it by.
pub fn key(number: u64) -> String {
    format!("k{number:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_its_message_and_nothing_else_does() {
        for send in 0..200 {
            let number = number(3, 2, send);
            let mut bytes = body(number);
            assert_eq!(identify(&bytes), Some(number));
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            assert_eq!(identify(&bytes), None);
        }
    }
}
