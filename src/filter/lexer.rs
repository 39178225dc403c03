//! Splits an expression into tokens; the longest possible token wins, keywords know no case
//! (docs/behaviour.md, "SQL92 selectors").

use std::ops::Range;

use winnow::ascii::{digit0, digit1};
use winnow::combinator::{alt, cond, delimited, opt, repeat};
use winnow::error::{ContextError, ErrMode};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location};
use winnow::token::{any, one_of, take_until, take_while};

use super::SelectorError;

/// A piece of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A reserved word.
    Word(Word),
    /// A property's name.
    Name(&'a str),
    /// An integer, perhaps with `L` behind it.
    Integer(&'a str),
    /// A number with a point or an exponent.
    Float(&'a str),
    /// What stands between the quotes of a string, doubled quotes still doubled.
    Text(&'a str),
    /// An operator, a parenthesis or a comma.
    Sign(&'a str),
    /// The end of the expression.
    End,
}

/// Reserved words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Not,
    And,
    Or,
    Between,
    In,
    True,
    False,
    Null,
    Is,
    Contains,
    StartsWith,
    EndsWith,
}

const WORDS: [(&str, Word); 12] = [
    ("NOT", Word::Not),
    ("AND", Word::And),
    ("OR", Word::Or),
    ("BETWEEN", Word::Between),
    ("IN", Word::In),
    ("TRUE", Word::True),
    ("FALSE", Word::False),
    ("NULL", Word::Null),
    ("IS", Word::Is),
    ("CONTAINS", Word::Contains),
    ("STARTSWITH", Word::StartsWith),
    ("ENDSWITH", Word::EndsWith),
];

/// A token and the bytes it covers.
#[derive(Clone, Debug)]
pub struct Token<'a> {
    /// What it is.
    pub kind: Kind<'a>,
    /// Bytes of the expression.
    pub span: Range<usize>,
}

type Input<'a> = LocatingSlice<&'a str>;
type Lexed<O> = Result<O, ErrMode<ContextError>>;

/// All tokens of an expression, [`Kind::End`] last.
pub fn tokens(text: &str) -> Result<Vec<Token<'_>>, SelectorError> {
    let mut input = Input::new(text);
    let mut tokens = Vec::new();
    let line_ends = text.rfind(['\n', '\r']).map_or(0, |last| last + 1);
    loop {
        // Blanks and comments cannot fail: there may be none.
        let after_value = tokens.last().is_some_and(ends_a_value);
        let _: Lexed<()> = skipped(after_value, line_ends, &mut input);
        let start = input.current_token_start();
        if input.is_empty() {
            tokens.push(Token {
                kind: Kind::End,
                span: start..start,
            });
            return Ok(tokens);
        }
        let kind = token
            .parse_next(&mut input)
            .map_err(|_| unknown(text, start))?;
        let span = start..input.current_token_start();
        tokens.push(Token { kind, span });
    }
}

fn unknown(text: &str, at: usize) -> SelectorError {
    let length = text[at..].chars().next().map_or(0, char::len_utf8);
    let found = shown(&text[at..at + length]);
    let expected = "an operator, a name, a number or a string that ends";
    syntax_error(text, at, found, expected)
}

/// A piece of an expression for an error text.
pub fn shown(piece: &str) -> String {
    let visible: String = piece
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    format!("\"{visible}\"")
}

/// A syntax error at a byte of the expression, at its end if that is its length.
pub fn syntax_error(text: &str, at: usize, found: String, expected: &'static str) -> SelectorError {
    let (line, column) = place(text, at);
    SelectorError::Syntax {
        found,
        line,
        column,
        expected,
    }
}

/// Line and column of a byte as Apache's parser counts them: `\n`, `\r` and `\r\n` end lines and
/// belong to them, tabs go on to every eighth column, the end stands on the last character.
fn place(text: &str, at: usize) -> (usize, usize) {
    const TAB: usize = 8;
    let (mut line, mut column, mut before) = (1, 0, ' ');
    if text.is_empty() {
        return (0, 0);
    }
    for (byte, char) in text.char_indices() {
        if before == '\n' || (before == '\r' && char != '\n') {
            (line, column) = (line + 1, 0);
        }
        column = match char {
            '\t' => column + TAB - column % TAB,
            _ => column + 1,
        };
        before = char;
        if byte >= at {
            break;
        }
    }
    (line, column)
}

/// Whether an operator or the end follows a token: no `-` of a number can.
fn ends_a_value(token: &Token<'_>) -> bool {
    match token.kind {
        Kind::Name(_) | Kind::Integer(_) | Kind::Float(_) | Kind::Text(_) => true,
        Kind::Word(word) => matches!(word, Word::True | Word::False | Word::Null),
        Kind::Sign(sign) => sign == ")",
        Kind::End => false,
    }
}

/// Blanks and comments. As with Apache, two `-` begin a comment where a line end follows (before
/// the byte `line_ends`), else they are signs of a number; behind a value, where no number can
/// stand, they begin one all the same.
fn skipped(after_value: bool, line_ends: usize, input: &mut Input<'_>) -> Lexed<()> {
    let blank = take_while(1.., (' ', '\t', '\n', '\r', '\u{c}')).void();
    // Whether a line end follows is known beforehand: each `-` of thousands would look for it.
    let line = |input: &mut Input<'_>| -> Lexed<()> {
        let begins = after_value || input.current_token_start() < line_ends;
        let text = take_while(0.., |c| c != '\n' && c != '\r');
        let comment = ("--", text, opt(one_of(['\n', '\r']))).void();
        cond(begins, comment)
            .verify_map(|read| read)
            .parse_next(input)
    };
    let block = ("/*", take_until(0.., "*/"), "*/").void();
    repeat(0.., alt((blank, line, block))).parse_next(input)
}

fn token<'a>(input: &mut Input<'a>) -> Lexed<Kind<'a>> {
    alt((float, integer, string, name, sign)).parse_next(input)
}

fn exponent(input: &mut Input<'_>) -> Lexed<()> {
    (one_of(['e', 'E']), opt(one_of(['+', '-'])), digit1)
        .void()
        .parse_next(input)
}

fn float<'a>(input: &mut Input<'a>) -> Lexed<Kind<'a>> {
    alt((
        (digit1, '.', digit0, opt(exponent)).void(),
        ('.', digit1, opt(exponent)).void(),
        (digit1, exponent).void(),
    ))
    .take()
    .map(Kind::Float)
    .parse_next(input)
}

fn integer<'a>(input: &mut Input<'a>) -> Lexed<Kind<'a>> {
    // A zero stands alone: `007` is three numbers, which no expression allows.
    alt((
        "0".void(),
        (one_of('1'..='9'), digit0, opt(one_of(['l', 'L']))).void(),
    ))
    .take()
    .map(Kind::Integer)
    .parse_next(input)
}

fn string<'a>(input: &mut Input<'a>) -> Lexed<Kind<'a>> {
    let plain = take_while(1.., |c| c != '\'');
    let inside = repeat::<_, _, (), _, _>(0.., alt(("''", plain)));
    delimited('\'', inside.take(), '\'')
        .map(Kind::Text)
        .parse_next(input)
}

fn name<'a>(input: &mut Input<'a>) -> Lexed<Kind<'a>> {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '$';
    let found = (
        any.verify(move |c: &char| is_start(*c)),
        take_while(0.., move |c: char| is_start(c) || c.is_ascii_digit()),
    )
        .take()
        .parse_next(input)?;
    let word = WORDS
        .iter()
        .find(|(word, _)| word.eq_ignore_ascii_case(found));
    Ok(word.map_or(Kind::Name(found), |(_, word)| Kind::Word(*word)))
}

fn sign<'a>(input: &mut Input<'a>) -> Lexed<Kind<'a>> {
    let single = one_of(['<', '>', '=', '(', ')', ',', '+', '-']).take();
    alt(("<>", "<=", ">=", single))
        .map(Kind::Sign)
        .parse_next(input)
}
