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
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
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
    /// Parts of the expression.
    parts: usize,
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
        expression.each_name(&mut |name| {
            // Each is among them; were it not, the first one's value would be taken.
            name.slot = names.binary_search(&name.text).unwrap_or_default();
        });
        Ok(Self {
            expression,
            names: names.into_boxed_slice(),
            parts,
        })
    }

    /// Whether a message with these properties is wanted. What cannot be compared is not.
    pub fn matches(&self, properties: Properties<'_>) -> bool {
        if self.names.len() <= FEW {
            return self.holds(properties, &mut [None; FEW]);
        }
        self.holds(properties, &mut vec![None; self.names.len()])
    }

    /// Looks at each property once, then at the expression.
    fn holds<'a>(&self, properties: Properties<'a>, found: &mut evaluate::Found<'a>) -> bool {
        for (name, value) in properties.iter() {
            // Of several with the same name the last one counts.
            if let Ok(slot) = self
                .names
                .binary_search_by(|wanted| wanted.as_bytes().cmp(name))
            {
                found[slot] = Some(value);
            }
        }
        evaluate::truth(&self.expression, found) == Ok(Some(true))
    }

    /// What [`Selector::matches`] takes for these properties, in steps of about a nanosecond.
    pub fn work(&self, properties: Properties<'_>) -> usize {
        /// Steps of one part of an expression.
        const PART: usize = 16;
        let searches = 1 + self.names.len().checked_ilog2().unwrap_or_default() as usize;
        PART * self.parts + searches * properties.as_bytes().len()
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({})", self.expression)
    }
}

#[cfg(test)]
mod tests;
