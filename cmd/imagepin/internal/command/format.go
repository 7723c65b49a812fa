package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"

	"github.com/urfave/cli/v3"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// Values of --output.
const (
	outputTable    = "table"
	outputWide     = "wide"
	outputJSON     = "json"
	outputYAML     = "yaml"
	outputTemplate = "go-template="
	outputJSONPath = "jsonpath="
)

// outputs are all values of --output, for completion.
var outputs = []string{outputTable, outputWide, outputJSON, outputYAML, outputTemplate, outputJSONPath}

func outputFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "output", Aliases: []string{"o"}, Value: outputTable,
		Usage:     "output `FORMAT`: table, wide, json, yaml, or jsonpath=TEMPLATE or go-template=TEMPLATE over the JSON object",
		Validator: checkOutput,
	}
}

func checkOutput(format string) error {
	switch format {
	case outputTable, outputWide, outputJSON, outputYAML:
		return nil
	}
	if format == outputJSONPath || format == outputTemplate {
		return errors.New("the template is missing")
	}
	if strings.HasPrefix(format, outputJSONPath) {
		_, err := parseJSONPath(format)
		return err
	}
	if !strings.HasPrefix(format, outputTemplate) {
		return errors.New("must be table, wide, json, yaml, jsonpath=TEMPLATE or go-template=TEMPLATE")
	}
	_, err := parseTemplate(format)
	return err
}

// parseJSONPath parses a template as kubectl does. A missing field is empty.
func parseJSONPath(format string) (*jsonpath.JSONPath, error) {
	j := jsonpath.New("output").AllowMissingKeys(true)
	return j, j.Parse(strings.TrimPrefix(format, outputJSONPath))
}

func parseTemplate(format string) (*template.Template, error) {
	return template.New("output").Parse(strings.TrimPrefix(format, outputTemplate))
}

// printsText reports whether the output is text for people, and not a format for programs.
func printsText(cmd *cli.Command) bool {
	format := cmd.String("output")
	return format == outputTable || format == outputWide
}

// print prints a response in the format that --output selects: it calls text for a table.
func (a *app) print(cmd *cli.Command, response any, text func() error) error {
	if printsText(cmd) {
		return text()
	}
	object, err := marshal(response)
	if err != nil {
		return err
	}
	return printObject(a.Out, cmd.String("output"), object)
}

// marshal returns a response as JSON. All numbers are JSON numbers.
func marshal(response any) ([]byte, error) {
	if m, ok := response.(proto.Message); ok {
		return marshalMessage(m)
	}
	return json.Marshal(response)
}

// printObject prints a JSON object in a format for programs.
func printObject(w io.Writer, format string, object []byte) error {
	switch format {
	case outputJSON:
		return printJSON(w, object)
	case outputYAML:
		b, err := yaml.JSONToYAML(object)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	return printTemplate(w, format, object)
}

// executor executes a parsed template.
type executor interface {
	Execute(w io.Writer, data any) error
}

// parseFormat parses go-template= or jsonpath=.
func parseFormat(format string) (executor, error) {
	if strings.HasPrefix(format, outputJSONPath) {
		return parseJSONPath(format)
	}
	return parseTemplate(format)
}

// printJSON indents object. protojson intentionally varies its white space between builds; this output is stable.
func printJSON(w io.Writer, object []byte) error {
	var out bytes.Buffer
	if err := json.Indent(&out, object, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err := out.WriteTo(w)
	return err
}

// printTemplate prints nothing if the template fails.
func printTemplate(w io.Writer, format string, object []byte) error {
	t, err := parseFormat(format)
	if err != nil {
		return err
	}
	data, err := templateData(object)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		name, _, _ := strings.Cut(format, "=")
		return fmt.Errorf("-o %s: %w", name, err)
	}
	_, err = out.WriteTo(w)
	return err
}

// templateData decodes a JSON object. Integers are int64, so that a template prints all their digits and can compare them.
func templateData(object []byte) (any, error) {
	var data any
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	if err := d.Decode(&data); err != nil {
		return nil, err
	}
	return withIntegers(data), nil
}

func withIntegers(data any) any {
	switch data := data.(type) {
	case map[string]any:
		for name, value := range data {
			data[name] = withIntegers(value)
		}
	case []any:
		for i, value := range data {
			data[i] = withIntegers(value)
		}
	case json.Number:
		if n, err := data.Int64(); err == nil {
			return n
		}
	}
	return data
}
