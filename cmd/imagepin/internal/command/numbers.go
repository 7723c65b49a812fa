package command

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// marshalMessage returns a message in protobuf's JSON format, including empty fields, with 64-bit integers as numbers.
// protobuf writes them as strings, because some readers only have floating-point numbers. To jq, each string is greater
// than each number, so that a comparison with a string is wrong without an error. All digits are printed: a reader that
// only has floating-point numbers rounds those above 2^53, in bytes 8 PiB.
func marshalMessage(m proto.Message) ([]byte, error) {
	object, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	u := unquoter{object: object, tokens: json.NewDecoder(bytes.NewReader(object))}
	if err := u.value(m.ProtoReflect().Descriptor(), false); err != nil {
		return nil, err
	}
	return append(u.out, object[u.copied:]...), nil
}

// unquoter copies the JSON of a message without the quotes of integers.
type unquoter struct {
	object []byte
	tokens *json.Decoder
	copied int // bytes of object
	out    []byte
}

// value reads a value, or all values of a list: objects of a message, or integers, or others.
func (u *unquoter) value(message protoreflect.MessageDescriptor, integer bool) error {
	token, err := u.tokens.Token()
	if err != nil {
		return err
	}
	switch token := token.(type) {
	case json.Delim:
		for u.tokens.More() {
			if token == '{' {
				err = u.member(message)
			} else {
				err = u.value(message, integer)
			}
			if err != nil {
				return err
			}
		}
		_, err = u.tokens.Token() // the closing delimiter
		return err
	case string:
		if integer {
			end := int(u.tokens.InputOffset())
			u.out = append(append(u.out, u.object[u.copied:end-len(token)-2]...), token...)
			u.copied = end
		}
	}
	return nil
}

// member reads the name and the value of a field.
func (u *unquoter) member(message protoreflect.MessageDescriptor) error {
	name, err := u.tokens.Token()
	if err != nil {
		return err
	}
	f := message.Fields().ByJSONName(name.(string))
	return u.value(f.Message(), is64Bit(f.Kind()))
}

func is64Bit(k protoreflect.Kind) bool {
	switch k {
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return true
	}
	return false
}
