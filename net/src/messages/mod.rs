//! Typed request and response headers and bodies, one file per request family
//! (docs/protocol.md, "Request codes").
//!
//! Headers are views that borrow from the ext fields: `decode` checks, `encode_fields` writes the
//! same fields again (clients use it). Bodies are owned and read by [`crate::fastjson`].

pub mod broker;
pub mod group;
pub mod heartbeat;
pub mod kv;
pub mod lock;
pub mod message_id;
pub mod namesrv;
pub mod offset;
pub mod pop;
pub mod pull;
pub mod query;
pub mod recall;
pub mod register;
pub mod route;
pub mod send;
pub mod stats;
pub mod topic;
pub mod transaction;

use crate::encode::Encoder;
use crate::header::fields::{FieldError, Fields};

/// A value that an ext field can hold.
pub(crate) trait FieldValue<'f>: Sized {
    /// Reads the field `name`.
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError>;

    /// Writes the field `name`; an absent optional value writes nothing.
    fn write(self, name: &'static str, encoder: &mut Encoder<'_>);
}

/// Mandatory text.
impl<'f> FieldValue<'f> for &'f str {
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError> {
        fields.required_str(name)
    }

    fn write(self, name: &'static str, encoder: &mut Encoder<'_>) {
        encoder.field_str(name, self);
    }
}

impl<'f> FieldValue<'f> for Option<&'f str> {
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError> {
        fields.str(name)
    }

    fn write(self, name: &'static str, encoder: &mut Encoder<'_>) {
        if let Some(text) = self {
            encoder.field_str(name, text);
        }
    }
}

/// A mandatory number.
impl<'f> FieldValue<'f> for i32 {
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError> {
        fields.required_i32(name)
    }

    fn write(self, name: &'static str, encoder: &mut Encoder<'_>) {
        encoder.field_i32(name, self);
    }
}

impl<'f> FieldValue<'f> for Option<i32> {
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError> {
        fields.i32(name)
    }

    fn write(self, name: &'static str, encoder: &mut Encoder<'_>) {
        if let Some(number) = self {
            encoder.field_i32(name, number);
        }
    }
}

/// A mandatory number.
impl<'f> FieldValue<'f> for i64 {
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError> {
        fields.required_i64(name)
    }

    fn write(self, name: &'static str, encoder: &mut Encoder<'_>) {
        encoder.field_i64(name, self);
    }
}

impl<'f> FieldValue<'f> for Option<i64> {
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError> {
        fields.i64(name)
    }

    fn write(self, name: &'static str, encoder: &mut Encoder<'_>) {
        if let Some(number) = self {
            encoder.field_i64(name, number);
        }
    }
}

/// A truth value; absent means false, as for Java's primitive type.
impl<'f> FieldValue<'f> for bool {
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError> {
        Ok(fields.bool(name)?.unwrap_or(false))
    }

    fn write(self, name: &'static str, encoder: &mut Encoder<'_>) {
        encoder.field_bool(name, self);
    }
}

impl<'f> FieldValue<'f> for Option<bool> {
    fn read(fields: &Fields<'f>, name: &'static str) -> Result<Self, FieldError> {
        fields.bool(name)
    }

    fn write(self, name: &'static str, encoder: &mut Encoder<'_>) {
        if let Some(truth) = self {
            encoder.field_bool(name, truth);
        }
    }
}

/// Defines headers: Rust field, type, and name on the wire. Types without `Option` are mandatory
/// (`bool` is false when absent).
macro_rules! headers {
    ($(
        $(#[$about:meta])*
        $name:ident $(<$life:lifetime>)? {
            $($(#[$comment:meta])* $field:ident: $type:ty = $wire:literal,)*
        }
    )*) => {
        $(headers! { @one
            ($(#[$about])*) $name ($($life)?) { $(($(#[$comment])*) $field ($type) $wire)* }
        })*
    };
    (@one ($(#[$about:meta])*) $name:ident () {
        $(($(#[$comment:meta])*) $field:ident ($type:ty) $wire:literal)*
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $(#[doc = concat!("`", $wire, "`.")] $(#[$comment])* pub $field: $type,)*
        }

        impl $name {
            /// Reads the fields; errors name the first one that is missing or garbled.
            pub fn decode(
                fields: &crate::header::fields::Fields<'_>,
            ) -> Result<Self, crate::header::fields::FieldError> {
                Ok($name {
                    $($field: crate::messages::FieldValue::read(fields, $wire)?,)*
                })
            }

            headers! { @encode $($field $wire)* }
        }
    };
    (@one ($(#[$about:meta])*) $name:ident ($life:lifetime) {
        $(($(#[$comment:meta])*) $field:ident ($type:ty) $wire:literal)*
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name<$life> {
            $(#[doc = concat!("`", $wire, "`.")] $(#[$comment])* pub $field: $type,)*
        }

        impl<$life> $name<$life> {
            /// Reads the fields; errors name the first one that is missing or garbled.
            pub fn decode(
                fields: &crate::header::fields::Fields<$life>,
            ) -> Result<Self, crate::header::fields::FieldError> {
                Ok($name {
                    $($field: crate::messages::FieldValue::read(fields, $wire)?,)*
                })
            }

            headers! { @encode $($field $wire)* }
        }
    };
    (@encode $($field:ident $wire:literal)*) => {
        /// Writes the fields.
        pub fn encode_fields(&self, encoder: &mut crate::encode::Encoder<'_>) {
            $(crate::messages::FieldValue::write(self.$field, $wire, encoder);)*
        }
    };
}
pub(crate) use headers;
