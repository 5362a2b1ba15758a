//! Memory that can be paged out behaves as the heap does, wherever what is put there ends up.

use std::cell::Cell;
use std::fs;
use std::io;

use proptest::prelude::*;
use quire_journal::{Array, Block, Memory, PageFile};

const MIB: usize = 1024 * 1024;

/// A file that can grow to `size_max`. Nothing of it is left when the memory is gone, with the
/// directory or without.
fn paged(size_max: usize) -> Memory {
    let directory = tempfile::tempdir().unwrap();
    let file = PageFile::create(directory.path(), size_max).unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "a file that has a name");
    Memory::paged(file)
}

#[derive(Clone, Debug)]
enum Step {
    Make(usize),
    Drop(prop::sample::Index),
    Extend(prop::sample::Index, Vec<u64>),
    Insert(prop::sample::Index, prop::sample::Index, u64),
    Remove(prop::sample::Index, prop::sample::Index),
    Truncate(prop::sample::Index, usize),
    Shrink(prop::sample::Index),
    Reserve(prop::sample::Index, usize),
    Clone(prop::sample::Index),
    PageOut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = any::<prop::sample::Index>;
    let step = prop_oneof![
        6 => (0usize..700).prop_map(Step::Make),
        3 => which().prop_map(Step::Drop),
        8 => (which(), prop::collection::vec(any::<u64>(), 0..300)).prop_map(|(at, values)| Step::Extend(at, values)),
        4 => (which(), which(), any::<u64>()).prop_map(|(at, index, value)| Step::Insert(at, index, value)),
        4 => (which(), which()).prop_map(|(at, index)| Step::Remove(at, index)),
        2 => (which(), 0usize..400).prop_map(|(at, len)| Step::Truncate(at, len)),
        2 => which().prop_map(Step::Shrink),
        2 => (which(), 0usize..80).prop_map(|(at, more)| Step::Reserve(at, more)),
        2 => which().prop_map(Step::Clone),
        1 => Just(Step::PageOut),
    ];
    prop::collection::vec(step, 1..120)
}

/// Arrays in one memory, and what they hold.
fn run(memory: &Memory, steps: &[Step]) {
    let (mut arrays, mut model): (Vec<Array<u64>>, Vec<Vec<u64>>) = Default::default();
    for step in steps {
        let len = arrays.len().max(1);
        match step {
            Step::Make(capacity) => {
                arrays.push(Array::with_capacity(*capacity, memory));
                assert!(arrays.last().unwrap().capacity() >= *capacity);
                model.push(Vec::new());
            }
            Step::PageOut => memory.page_out().unwrap(),
            _ if arrays.is_empty() => {}
            Step::Drop(at) => {
                arrays.swap_remove(at.index(len));
                model.swap_remove(at.index(len));
            }
            Step::Extend(at, values) => {
                arrays[at.index(len)].extend_from_slice(values);
                model[at.index(len)].extend_from_slice(values);
            }
            Step::Insert(at, index, value) => {
                let index = index.index(model[at.index(len)].len() + 1);
                arrays[at.index(len)].insert(index, *value);
                model[at.index(len)].insert(index, *value);
            }
            Step::Remove(at, _) if model[at.index(len)].is_empty() => {}
            Step::Remove(at, index) => {
                let index = index.index(model[at.index(len)].len());
                arrays[at.index(len)].remove(index);
                model[at.index(len)].remove(index);
            }
            Step::Truncate(at, keep) => {
                arrays[at.index(len)].truncate(*keep);
                model[at.index(len)].truncate(*keep);
            }
            Step::Shrink(at) => {
                let array = &mut arrays[at.index(len)];
                array.shrink_to_fit();
                assert_eq!(array.capacity(), array.len());
            }
            Step::Reserve(at, more) => {
                let array = &mut arrays[at.index(len)];
                let before = array.capacity();
                array.reserve_exact(*more);
                assert_eq!(array.capacity(), before.max(array.len() + more));
            }
            Step::Clone(at) => {
                arrays.push(arrays[at.index(len)].clone());
                model.push(model[at.index(len)].clone());
            }
        }
        for (array, expected) in arrays.iter_mut().zip(&mut model) {
            assert_eq!(array[..], expected[..]);
            // A write to one array does not change its copies.
            if let (Some(here), Some(there)) = (array.last_mut(), expected.last_mut()) {
                *here = here.wrapping_add(1);
                *there = there.wrapping_add(1);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arrays_are_vectors_on_the_heap_in_a_file_and_when_the_file_is_full(steps in steps()) {
        run(&Memory::heap(), &steps);
        run(&paged(64 * MIB), &steps);
        let full = paged(MIB / 2);
        run(&full, &steps);
        prop_assert_eq!(full.file_size(), 0);
    }
}

#[test]
fn a_block_drops_its_value_once() {
    struct Counted<'a>(&'a Cell<u32>, #[allow(dead_code)] Array<u32>);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    for memory in [Memory::heap(), paged(8 * MIB)] {
        let dropped = Cell::new(0);
        let mut blocks: Vec<_> = (0..100)
            .map(|number| {
                let mut inner = Array::new(&memory);
                inner.extend_from_slice(&[number; 50]);
                Block::new(Counted(&dropped, inner), &memory)
            })
            .collect();
        blocks[7].1.insert(0, 5);
        assert_eq!((blocks[7].1[0], blocks[7].1[1], blocks[8].1.len()), (5, 7, 50));
        blocks.truncate(40);
        assert_eq!(dropped.get(), 60);
        drop(blocks);
        assert_eq!(dropped.get(), 100);
    }
}

#[test]
fn what_is_paged_out_is_read_again() {
    let memory = paged(64 * MIB);
    let arrays: Vec<Array<u64>> = (0..5_000u64)
        .map(|number| {
            let mut array = Array::new(&memory);
            (0..100).for_each(|index| array.extend_from_slice(&[number * 1000 + index]));
            array
        })
        .collect();
    memory.page_out().unwrap();
    for (number, array) in arrays.iter().enumerate() {
        assert!(array.iter().enumerate().all(|(index, value)| *value == (number * 1000 + index) as u64));
    }
}

#[test]
fn a_file_that_cannot_grow_is_told_once_and_what_comes_back_is_used() {
    let memory = paged(5 * MIB);
    assert!(memory.take_failure().is_none());
    let mut arrays: Vec<Array<u64>> = (0..2_000).map(|_| Array::with_capacity(512, &memory)).collect();
    assert_eq!(memory.file_size(), 4 * MIB as u64);
    assert_eq!(memory.take_failure().unwrap().kind(), io::ErrorKind::StorageFull);
    assert!(memory.take_failure().is_none(), "told twice");
    arrays.iter_mut().for_each(|array| array.extend_from_slice(&[3; 512]));
    let address = |array: &Array<u64>| array.as_ptr().addr();
    let file = address(&arrays[0])..address(&arrays[0]) + 4 * MIB;
    assert!(file.contains(&address(&arrays[1000])) && !file.contains(&address(&arrays[1500])));
    arrays.drain(..100);
    let again = Array::<u64>::with_capacity(512, &memory);
    assert!(file.contains(&address(&again)), "a place that came back is not used");
}

#[test]
fn an_empty_memory_gives_its_file_back() {
    let memory = paged(64 * MIB);
    for _ in 0..3 {
        let arrays: Vec<Array<u64>> = (0..5_000)
            .map(|number| {
                let mut array = Array::new(&memory);
                array.extend_from_slice(&[number; 512]);
                array
            })
            .collect();
        assert!(arrays.iter().enumerate().all(|(number, array)| array[..] == [number as u64; 512]));
        assert!((20 * MIB as u64..=24 * MIB as u64).contains(&memory.file_size()));
        drop(arrays);
        assert_eq!(memory.file_size(), 4 * MIB as u64);
    }
    assert!(memory.take_failure().is_none());
}

#[test]
fn what_was_given_back_serves_for_other_sizes() {
    let memory = paged(64 * MIB);
    for size in [1000, 2000, 3000, 4000] {
        let arrays: Vec<Array<u8>> =
            (0..10 * MIB / size).map(|_| Array::with_capacity(size, &memory)).collect();
        assert!(memory.file_size() <= 16 * MIB as u64, "{} bytes", memory.file_size());
        drop(arrays);
    }
    // One of them stays, and only its part of the file is not of use.
    let mut kept = Vec::new();
    for size in [1000, 2000, 3000, 4000] {
        let mut arrays: Vec<Array<u8>> =
            (0..10 * MIB / size).map(|_| Array::with_capacity(size, &memory)).collect();
        assert!(memory.file_size() <= 16 * MIB as u64, "{} bytes", memory.file_size());
        kept.push(arrays.swap_remove(arrays.len() / 2));
    }
}
