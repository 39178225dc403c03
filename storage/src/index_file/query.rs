//! Queries by key, which go on in steps: all messages of an application may have the same key, and
//! the chain of that key is as long as the file.

use super::{Index, IndexError, IndexFile};
use crate::format::hash::index_hash;
use crate::format::index_entry::IndexHeader;

/// What a query found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IndexHits {
    /// Log offsets of records that may have the key, newest first.
    pub offsets: Vec<u64>,
    /// Store time of the last indexed key, ms.
    pub last_timestamp: i64,
    /// Log offset of the last indexed record.
    pub last_offset: i64,
}

/// A query by key that goes on in steps.
#[derive(Debug)]
pub struct KeyQuery {
    hash: i32,
    max: usize,
    /// Store times that are asked for, ms.
    begin: i64,
    end: i64,
    hits: IndexHits,
    place: Place,
}

/// Where a query goes on.
#[derive(Debug)]
enum Place {
    Start,
    /// At this item of the file with this name.
    Item(String, i32),
}

/// What is left of a chain.
enum Chain {
    Ended,
    /// From this item on.
    Left(i32),
}

impl KeyQuery {
    /// Asks for at most `max` records of `topic` that may have `key` and were stored from `begin`
    /// to `end` (ms). Hashes collide: topic and key must be checked in the record. Times are kept
    /// in whole seconds.
    pub fn new(topic: &str, key: &[u8], max: usize, begin: i64, end: i64) -> Self {
        Self {
            hash: index_hash(topic, key),
            max,
            begin,
            end,
            hits: IndexHits::default(),
            place: Place::Start,
        }
    }
}

impl Index {
    /// A query in one step: see [`KeyQuery::new`].
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn query(
        &self,
        topic: &str,
        key: &[u8],
        max: usize,
        begin: i64,
        end: i64,
    ) -> Result<IndexHits, IndexError> {
        let mut query = KeyQuery::new(topic, key, max, begin, end);
        let hits = self.go_on(&mut query, usize::MAX)?;
        Ok(hits.unwrap_or_default())
    }

    /// Goes on with a query over at most `items` items; what it found once it has ended. Files
    /// that expire between two steps are left out, with all that is older.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn go_on(
        &self,
        query: &mut KeyQuery,
        items: usize,
    ) -> Result<Option<IndexHits>, IndexError> {
        let files = self.files.load();
        let mut left = items;
        let mut from = None;
        let older = match std::mem::replace(&mut query.place, Place::Start) {
            Place::Start => {
                let last = files.last().map(|file| file.header()).unwrap_or_default();
                query.hits.last_timestamp = last.end_timestamp;
                query.hits.last_offset = last.end_offset;
                files.len()
            }
            Place::Item(name, item) => {
                from = Some(item);
                let index = files.iter().position(|file| file.name == name);
                index.map_or(0, |index| index + 1)
            }
        };
        for file in files.iter().take(older).rev() {
            let header = file.header();
            let first = match from.take() {
                Some(item) => Some(item),
                None if query.begin <= header.end_timestamp
                    && query.end >= header.begin_timestamp =>
                {
                    file.first_of(query.hash, &header)?
                }
                None => None,
            };
            if let Chain::Left(item) = file.walk(first, &header, query, &mut left)? {
                query.place = Place::Item(file.name.clone(), item);
                return Ok(None);
            }
            if header.begin_timestamp < query.begin || query.hits.offsets.len() >= query.max {
                break;
            }
        }
        Ok(Some(std::mem::take(&mut query.hits)))
    }
}

impl IndexFile {
    /// The newest item in the chain of a hash.
    fn first_of(&self, hash: i32, header: &IndexHeader) -> Result<Option<i32>, IndexError> {
        let slot = self.slot(self.shape.slot_of(hash))?;
        Ok(slot.filter(|item| *item <= header.next_item && header.next_item > 1))
    }

    /// Follows a chain over at most `left` items, which are taken off.
    fn walk(
        &self,
        first: Option<i32>,
        header: &IndexHeader,
        query: &mut KeyQuery,
        left: &mut usize,
    ) -> Result<Chain, IndexError> {
        let mut next = first;
        while let Some(number) = next.filter(|_| query.hits.offsets.len() < query.max) {
            if *left == 0 {
                return Ok(Chain::Left(number));
            }
            *left -= 1;
            let Some(item) = self.item(number)? else {
                break;
            };
            if item.seconds < 0 {
                break;
            }
            // The first item counts from the end of the file before, as in Apache RocketMQ.
            let seconds = if number == 1 { 0 } else { item.seconds };
            let time = header
                .begin_timestamp
                .saturating_add(i64::from(seconds) * 1000);
            if item.hash == query.hash && (query.begin..=query.end).contains(&time) {
                let offset = u64::try_from(item.physical_offset);
                query.hits.offsets.extend(offset.ok());
            }
            if time < query.begin {
                break;
            }
            next = Some(item.previous).filter(|previous| (1..number).contains(previous));
        }
        Ok(Chain::Ended)
    }
}
