import type { Signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect } from 'preact/hooks'
import { Icon } from '#services/console/parts/icon.tsx'
import { queryParam } from '#services/console/router.ts'
import { modelFor } from '#services/console/screens/playground/catalog.ts'
import { Code } from './code.tsx'
import { ModelChoice } from './model-choice.tsx'
import { Options } from './options.tsx'
import { RunProblem } from './problem.tsx'
import type { Run } from './run.ts'
import { type Field, filledFields } from './schema.ts'

interface CallFormProps {
  readonly run: Run
  /** Capability and choice of the model; absent: the endpoint needs no model. */
  readonly model?: { readonly capability: string; readonly chosen: Signal<string> }
  readonly fields: readonly Field[]
  readonly values: Signal<Readonly<Record<string, string>>>
  /** Number of options outside the "More options" section. */
  readonly shown?: number
  readonly verb: string
  /** Whether the inputs other than the model are complete. */
  readonly isReady: boolean
  readonly send: (options: Readonly<Record<string, unknown>>) => Promise<void>
  readonly children: ComponentChildren
  /** Content next to the submit button. */
  readonly extra?: ComponentChildren
  readonly outcome?: ComponentChildren
  readonly hint?: ComponentChildren
  readonly below?: ComponentChildren
}

export function CallForm(props: CallFormProps) {
  const { run, model, fields, values, shown, verb, isReady, send } = props
  useEffect(() => {
    if (model) model.chosen.value = modelFor(model.capability, queryParam('model') || model.chosen.value)
  }, [])
  return (
    <>
      <div class="columns">
        <form
          class="card form"
          onSubmit={(event) => {
            event.preventDefault()
            void send(filledFields(fields, values.value))
          }}
        >
          {props.children}
          <div class="actions">
            <Send run={run} label={verb} isReady={isReady && model?.chosen.value !== ''} />
            {props.extra}
          </div>
          <RunProblem run={run} />
          {props.outcome}
        </form>
        <Options fields={fields} values={values} {...(shown !== undefined && { shown })}>
          {model && <ModelChoice capability={model.capability} model={model.chosen} />}
          {props.hint}
        </Options>
      </div>
      {props.below}
      <Code calls={run.calls.value} />
    </>
  )
}

interface TextFieldProps {
  readonly label: string
  readonly text: Signal<string>
  /** Visible lines; absent: a single-line field. */
  readonly rows?: number
  readonly isSource?: boolean
}

export function TextField({ label, text, rows, isSource = false }: TextFieldProps) {
  const onInput = ({ currentTarget }: { readonly currentTarget: { readonly value: string } }) => {
    text.value = currentTarget.value
  }
  const source = isSource && ({ class: 'source', spellcheck: false, autocapitalize: 'off' } as const)
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is within, one of two.
    <label>
      <span>{label}</span>
      {rows === undefined ? (
        <input value={text.value} onInput={onInput} />
      ) : (
        <textarea {...{ rows, ...source }} value={text.value} onInput={onInput} />
      )}
    </label>
  )
}

/** The trimmed lines of a text, without empty ones. */
export function nonEmptyLines(text: string): readonly string[] {
  return text.split('\n').flatMap((line) => line.trim() || [])
}

interface SendProps {
  readonly run: Run
  readonly label: string
  readonly isReady: boolean
}

/** A submit button that becomes a Stop button while the request is in flight. */
function Send({ run, label, isReady }: SendProps) {
  return run.isBusy.value ? (
    <button key="stop" type="button" class="primary" onClick={() => run.stop()}>
      <Icon name="stop" /> Stop
    </button>
  ) : (
    <button key="send" type="submit" class="primary" disabled={!isReady}>
      <Icon name="send" /> {label}
    </button>
  )
}
