package command

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// large is a number that a floating-point number does not have.
const large = 1<<53 + 1

// fill sets each field of a message, except those that lead to a message of the same type again, and returns how many
// numbers it has set.
func fill(t *testing.T, m protoreflect.Message, around ...protoreflect.FullName) (numbers int) {
	t.Helper()
	around = append(slices.Clone(around), m.Descriptor().FullName())
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Message() != nil && slices.Contains(around, f.Message().FullName()):
		case f.IsList():
			list := m.Mutable(f).List()
			for range 2 {
				value, n := fieldValue(t, f, list.NewElement(), around)
				list.Append(value)
				numbers += n
			}
		default:
			value, n := fieldValue(t, f, m.NewField(f), around)
			m.Set(f, value)
			numbers += n
		}
	}
	return numbers
}

// fieldValue returns a value of a field, or of an element of its list, and how many numbers it has.
func fieldValue(t *testing.T, f protoreflect.FieldDescriptor, empty protoreflect.Value, around []protoreflect.FullName) (value protoreflect.Value, numbers int) {
	t.Helper()
	switch kind := f.Kind(); {
	case f.IsMap():
	case kind == protoreflect.MessageKind && f.Message().FullName() == "google.protobuf.Timestamp":
		return protoreflect.ValueOfMessage(timestamppb.New(testNow).ProtoReflect()), 0
	case kind == protoreflect.MessageKind:
		return empty, fill(t, empty.Message(), around...)
	case kind == protoreflect.StringKind:
		return protoreflect.ValueOfString("a \"12\" <b>"), 0
	case kind == protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("bytes")), 0
	case kind == protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true), 0
	case kind == protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(large), 1
	}
	t.Fatalf("%s is of a kind that this test and the command do not know", f.FullName())
	return empty, 0
}

// TestNumbersAreNumbers checks each message of the control service, of which commands print many: in each format, its
// numbers are numbers with all digits, and the rest is as in protobuf's JSON format.
func TestNumbersAreNumbers(t *testing.T) {
	messages := api.File_imagepin_v1_imagepin_proto.Messages()
	for i := range messages.Len() {
		name := messages.Get(i).FullName()
		messageType, err := protoregistry.GlobalTypes.FindMessageByName(name)
		if err != nil {
			t.Fatal(err)
		}
		m := messageType.New()
		want := fill(t, m)
		object, err := marshal(m.Interface())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		back := messageType.New()
		if err := protojson.Unmarshal(object, back.Interface()); err != nil || !proto.Equal(back.Interface(), m.Interface()) {
			t.Errorf("%s: the JSON is of another message: %v\n%s", name, err, object)
		}
		for _, format := range []string{outputJSON, outputYAML, outputTemplate + `{{printf "%#v" .}}`} {
			var out strings.Builder
			if err := printObject(&out, format, object); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := len(numberIn(format).FindAllString(out.String(), -1)); got != want {
				t.Errorf("%s: got %d numbers, want %d\n%s", name, got, want, out.String())
			}
		}
	}
}

// numberIn matches large as a number.
func numberIn(format string) *regexp.Regexp {
	switch format {
	case outputJSON:
		return regexp.MustCompile(`(?m)(^|: ) *9007199254740993,?$`)
	case outputYAML:
		return regexp.MustCompile(`(?m): 9007199254740993$`)
	}
	return regexp.MustCompile(`:9007199254740993[,}]`)
}

// TestTemplateComparesNumbers is for templates that decide by a number.
func TestTemplateComparesNumbers(t *testing.T) {
	got := run(t, recorded(), "check", "-o", "go-template={{if gt .checked 6}}{{.checked}} keys{{end}}")
	if got.out != "7 keys" {
		t.Errorf("exit code %d, printed %q%q", got.code, got.out, got.err)
	}
}

// TestCommandsPrintNumbers checks the JSON of each command: no string in it is a number.
func TestCommandsPrintNumbers(t *testing.T) {
	texts := regexp.MustCompile(`"(from|to|user)": "[0-9]+"`) // a value of an environment variable, a user
	for _, args := range everyCall {
		got := run(t, recorded(), append(strings.Fields(args), "-o", "json")...)
		if number := regexp.MustCompile(`.*"-?[0-9.]+".*`).FindString(texts.ReplaceAllString(got.out, "")); got.out == "" || number != "" {
			t.Errorf("%s printed the number of %s as a string%s", args, strings.TrimSpace(number), got.err)
		}
	}
}
