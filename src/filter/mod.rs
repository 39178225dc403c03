//! SQL92 selectors: which messages a consumer wants by their properties
//! (docs/behaviour.md, "SQL92 selectors").
//!
//! An expression is compiled once, when a client subscribes or a pull brings its own; looking at a
//! message allocates nothing, unless the expression names very many properties.

use std::fmt;

use saturnmq_storage::format::properties::Properties;
use thiserror::Error;

mod bloom;
mod evaluate;
mod lexer;
pub mod marks;
mod parser;
pub mod registered;
mod syntax;

use syntax::Expression;

/// The expression type of SQL92 selectors.
pub const SQL92: &str = "SQL92";

/// Longest expression, in bytes.
pub const MAX_LENGTH: usize = 32 * 1024;
/// Deepest nesting of an expression: parentheses, operators in one another, chains of comparisons.
pub const MAX_DEPTH: u16 = 64;

/// Why an expression cannot be compiled.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SelectorError {
    /// The text does not follow the grammar.
    #[error("Encountered {found} at line {line}, column {column}; expected {expected}")]
    Syntax {
        /// What stands there.
        found: String,
        /// Line, from 1; 0 when there is no character.
        line: usize,
        /// Column, from 1, with tabs of eight; of the end the last character's.
        column: usize,
        /// What may stand there.
        expected: &'static str,
    },
    /// The expression means nothing.
    #[error("{0}")]
    Meaning(String),
    /// The expression is longer than [`MAX_LENGTH`].
    #[error("the expression has {length} bytes, at most {MAX_LENGTH} are taken")]
    TooLong {
        /// Its bytes.
        length: usize,
    },
    /// The expression nests deeper than [`MAX_DEPTH`].
    #[error("the expression nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// A compiled SQL92 expression.
pub struct Selector {
    expression: Expression,
    /// The properties it names, in ascending order: a property's slot is its place here.
    names: Box<[Box<str>]>,
    /// How often the expression looks at the value of each.
    uses: Box<[usize]>,
    /// Parts of the expression.
    parts: usize,
    /// Bytes of its text.
    length: usize,
}

/// Properties whose values are found without an allocation.
const FEW: usize = 32;

impl Selector {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`SelectorError`] says what is wrong and where; unlike Apache's, what follows a complete
    /// expression is an error too.
    pub fn compile(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_LENGTH {
            return Err(SelectorError::TooLong { length: text.len() });
        }
        let mut expression = parser::parse(text)?;
        let mut names = Vec::new();
        let parts = expression.each_name(&mut |name| names.push(name.text.clone()));
        names.sort_unstable();
        names.dedup();
        let mut uses = vec![0; names.len()];
        expression.each_name(&mut |name| {
            // Each is among them; were it not, the first one's value would be taken.
            name.slot = names.binary_search(&name.text).unwrap_or_default();
            uses[name.slot] += 1;
        });
        Ok(Self {
            expression,
            names: names.into_boxed_slice(),
            uses: uses.into_boxed_slice(),
            parts,
            length: text.len(),
        })
    }

    /// What it takes in memory, roughly, in bytes: the tree of an expression is larger than its
    /// text, by no more than this.
    pub fn bytes(&self) -> usize {
        64 * self.length
    }

    /// Whether a message with these properties is wanted. What cannot be compared is not. Adds
    /// what that can take to `work`, in steps of about a nanosecond.
    pub fn matches(&self, properties: Properties<'_>, work: &mut usize) -> bool {
        if self.names.len() <= FEW {
            return self.holds(properties, &mut [None; FEW], work);
        }
        self.holds(properties, &mut vec![None; self.names.len()], work)
    }

    /// Looks at each property once, then at the expression.
    fn holds<'a>(
        &self,
        properties: Properties<'a>,
        found: &mut evaluate::Found<'a>,
        work: &mut usize,
    ) -> bool {
        for (name, value) in properties.iter() {
            // Of several with the same name the last one counts.
            if let Ok(slot) = self
                .names
                .binary_search_by(|wanted| wanted.as_bytes().cmp(name))
            {
                found[slot] = Some(value);
            }
        }
        *work += self.work(properties, found);
        evaluate::truth(&self.expression, found) == Ok(Some(true))
    }

    /// What looking at these properties and at all of the expression takes.
    fn work(&self, properties: Properties<'_>, found: &evaluate::Found<'_>) -> usize {
        /// Steps of one part of an expression.
        const PART: usize = 16;
        /// Steps of a byte of a value that is searched, compared or read as a number.
        const BYTE: usize = 2;
        let searches = 1 + self.names.len().checked_ilog2().unwrap_or_default() as usize;
        let values: usize = std::iter::zip(&self.uses, found)
            .map(|(uses, value)| uses * value.map_or(0, <[u8]>::len))
            .sum();
        PART * self.parts + searches * properties.as_bytes().len() + BYTE * values
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({})", self.expression)
    }
}

#[cfg(test)]
mod tests;
