package config

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// KeyError is an error of one key of a configuration. It matches ErrInvalidArgument.
type KeyError struct {
	Section string // of the plugins table; empty for the keys outside of it
	Key     string // with dots; empty if Err names the key
	Err     error

	path string // the key with dots if Err names it
}

// Error implements error.
func (e *KeyError) Error() string {
	where := e.Key
	if e.Section != "" {
		where = fmt.Sprintf("[plugins.%q]", e.Section)
	}
	if e.Section != "" && e.Key != "" {
		where += " " + e.Key
	}
	if where != "" {
		where += ": "
	}
	return fmt.Sprintf("%s%v: %v", where, e.Err, errdefs.ErrInvalidArgument)
}

// Unwrap returns the cause and the class.
func (e *KeyError) Unwrap() []error { return []error{e.Err, errdefs.ErrInvalidArgument} }

// Path returns the key with dots, also if Err names it; "" if the error is of the whole section or file.
func (e *KeyError) Path() string {
	if e.path != "" {
		return e.path
	}
	return e.Key
}

// Errors returns the errors of an invalid configuration one by one.
func Errors(err error) []error {
	several, ok := err.(interface{ Unwrap() []error })
	if _, one := err.(*KeyError); one || !ok {
		return only(err)
	}
	var all []error
	for _, e := range several.Unwrap() {
		all = append(all, Errors(e)...)
	}
	return all
}

func only(err error) []error {
	if err == nil {
		return nil
	}
	return []error{err}
}

// keyError adds imagepin's section and a key to an error.
func keyError(key string, err error) error {
	return sectionError(Section, key, err)
}

func sectionError(section, key string, err error) error {
	return &KeyError{Section: section, Key: key, Err: err}
}

// topError adds a key outside of the sections to an error.
func topError(key string, err error) error { return &KeyError{Key: key, Err: err} }
