//! Sessions by hand, and over connections that are cut.

use super::*;

fn message(n: u64) -> Bytes {
    Bytes::copy_from_slice(&n.to_le_bytes())
}

#[test]
fn a_cut_connection_loses_and_repeats_nothing() {
    // Two sides, and a link that is cut after every possible number of deliveries.
    for cut in 0..12_usize {
        let (mut a, mut b) = (Session::default(), Session::default());
        a.resume(7, b.received()).unwrap();
        let mut got = Vec::new();
        for n in 0..10 {
            a.push(message(n)).unwrap();
        }
        for _ in 0..cut {
            if let Some((seq, payload)) = a.pop()
                && b.arrived(seq) == Ok(Arrival::New)
            {
                got.push(payload);
            }
            if cut % 2 == 0 {
                a.acknowledged(b.tell()).unwrap();
            }
        }
        // Sent, and lost with the connection.
        a.pop();
        a.resume(7, b.received()).unwrap();
        while let Some((seq, payload)) = a.pop() {
            assert_eq!(b.arrived(seq), Ok(Arrival::New));
            got.push(payload);
        }
        a.acknowledged(b.tell()).unwrap();
        assert_eq!(got, (0..10).map(message).collect::<Vec<_>>(), "cut after {cut}");
        assert_eq!((a.waiting(), a.bytes), (0, 0));
    }
}

#[test]
fn duplicates_are_dropped_and_gaps_are_the_end() {
    let mut session = Session::default();
    assert_eq!(session.arrived(0), Ok(Arrival::New));
    assert_eq!(session.arrived(0), Ok(Arrival::Duplicate));
    assert_eq!(session.arrived(2), Err(Broken::Gap { got: 2, expected: 1 }));
}

#[test]
fn another_incarnation_is_another_peer() {
    let mut session = Session::default();
    session.resume(1, 0).unwrap();
    assert_eq!(session.resume(2, 0), Err(Broken::Reset { old: 1, new: 2 }));
}

#[test]
fn a_peer_that_lost_its_disk_is_noticed_by_its_numbers() {
    let (mut a, mut b) = (Session::default(), Session::default());
    a.push(message(0)).unwrap();
    a.resume(1, 0).unwrap();
    let (seq, _) = a.pop().unwrap();
    b.arrived(seq).unwrap();
    a.acknowledged(b.tell()).unwrap();
    // The same number again, from nothing: it expects what it had acknowledged.
    assert!(matches!(a.resume(1, 0), Err(Broken::Lost { .. })));
    // And from its side: we expect what it never sent.
    assert!(matches!(Session::default().resume(1, b.received()), Err(Broken::Lost { .. })));
}

#[test]
fn the_queue_is_bounded() {
    let mut session = Session::default();
    let big = Bytes::from(vec![0; MAX_BYTES]);
    session.push(big).unwrap();
    assert_eq!(session.push(message(1)), Err(Broken::Overflow));
    let mut session = Session::default();
    for _ in 0..MAX_MESSAGES {
        session.push(Bytes::new()).unwrap();
    }
    assert_eq!(session.push(Bytes::new()), Err(Broken::Overflow));
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_is_refused() {
    let mut session = Session::default();
    session.push(message(0)).unwrap();
    assert!(session.acknowledged(1).is_err());
}
