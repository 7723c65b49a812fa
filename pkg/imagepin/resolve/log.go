package resolve

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

const (
	// maxLogged is how long the message and the fields of a line of
	// containerd's resolver may be together, in bytes: it logs what a registry
	// says, headers and all.
	maxLogged = 3 << 10
	// maxMessage is how much of that the message may be.
	maxMessage = 1 << 10
	// cutField counts the fields that a line has no room for.
	cutField = "fields.cut"
)

// withRedactedLog gives containerd's resolver a logger that passes the values
// of everything it logs through [Redact] and hands them on to the logger of the
// context: the resolver logs the errors of every host that it tries.
//
// The context's logger formats and writes what it is given, by its own hooks
// and settings, which can change meanwhile. A change of its level counts from
// the next request on.
func withRedactedLog(ctx context.Context) context.Context {
	to := log.G(ctx)
	logger := &logrus.Logger{
		Out:          io.Discard,
		Formatter:    unformatted{},
		Hooks:        make(logrus.LevelHooks),
		Level:        to.Logger.GetLevel(),
		ReportCaller: to.Logger.ReportCaller,
		ExitFunc:     to.Logger.Exit,
	}
	logger.AddHook(handOn{to.Logger})
	entry := to.Dup()
	entry.Logger = logger
	return log.WithLogger(ctx, entry)
}

// unformatted is the format of a logger that writes nothing by itself.
type unformatted struct{}

func (unformatted) Format(*logrus.Entry) ([]byte, error) { return nil, nil }

// handOn is a hook that logs every entry, redacted, with another logger.
type handOn struct {
	to *logrus.Logger
}

func (handOn) Levels() []logrus.Level { return logrus.AllLevels }

func (h handOn) Fire(e *logrus.Entry) error {
	clean := e.Dup()
	clean.Logger = h.to
	message := imagepin.Bound(Redact(e.Message), maxMessage)
	clean.Data = cleanFields(e.Data, maxLogged-len(message))
	clean.Log(e.Level, message)
	return nil
}

// field is a field whose value is fit to be logged.
type field struct {
	key   string
	value any
	size  int // of key and value, in bytes
}

// cleanFields redacts fields, and bounds what they are together. The smallest
// ones are kept whole.
func cleanFields(data logrus.Fields, room int) logrus.Fields {
	fields := make([]field, 0, len(data))
	for key, value := range data {
		value, size := cleanValue(value)
		fields = append(fields, field{key, value, len(key) + size})
	}
	slices.SortFunc(fields, func(a, b field) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.key, b.key))
	})
	clean := make(logrus.Fields, len(fields))
	for i, f := range fields {
		if f.size > room {
			f.value = imagepin.Bound(fmt.Sprint(f.value), max(room-len(f.key), 0))
			if len(f.key) >= room {
				clean[cutField] = len(fields) - i
				break
			}
			f.size = room
		}
		clean[f.key] = f.value
		room -= f.size
	}
	return clean
}

// cleanValue redacts the value of a field. What is neither a text nor a number
// becomes the text that it has in a log.
func cleanValue(value any) (clean any, size int) {
	switch v := value.(type) {
	case nil:
		return nil, 0
	case time.Time:
		return v, len(time.RFC3339Nano)
	case error:
		err := RedactError(v)
		return err, len(err.Error())
	}
	text := fmt.Sprint(value)
	if kind := reflect.TypeOf(value).Kind(); kind >= reflect.Bool && kind <= reflect.Complex128 {
		return value, len(text)
	}
	text = imagepin.Bound(Redact(text), maxLogged)
	return text, len(text)
}
