import { type Signal, useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useId } from 'preact/hooks'
import { CopyButton, ErrorText, Icon } from '#services/console/parts/parts.tsx'
import { queryParam } from '#services/console/parts/router.ts'
import { type Call, codeOf, LANGUAGES, type Language } from './call.ts'
import { type Field, filledFields, modelFor, modelsFor } from './catalog.ts'
import type { Run } from './run.ts'

interface CallFormProps {
  readonly run: Run
  /** The model field: the capability that the endpoint requires, and the chosen model. Undefined if the endpoint needs no model. */
  readonly model?: { readonly capability: string; readonly chosen: Signal<string> }
  readonly fields: readonly Field[]
  readonly values: Signal<Readonly<Record<string, string>>>
  readonly shown?: number
  readonly verb: string
  readonly isReady: boolean
  readonly send: (options: Readonly<Record<string, unknown>>) => Promise<void>
  /** Returns the request that the form would send now. The page shows code for this request until the user sends a first request. */
  readonly draft?: (options: Readonly<Record<string, unknown>>) => Call
  readonly children: ComponentChildren
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
  const { draft } = props
  const isSent = run.calls.value.length > 0 || !draft || !isReady || model?.chosen.value === ''
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
      <Code calls={isSent ? run.calls.value : [draft(filledFields(fields, values.value))]} />
    </>
  )
}

interface TextFieldProps {
  readonly label: string
  readonly text: Signal<string>
  readonly rows?: number
  readonly isSource?: boolean
}

export function TextField({ label, text, rows, isSource = false }: TextFieldProps) {
  const onInput = ({ currentTarget }: { readonly currentTarget: { readonly value: string } }) => {
    text.value = currentTarget.value
  }
  const source = isSource && ({ class: 'source', spellcheck: false, autocapitalize: 'off' } as const)
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the label contains an input or a textarea.
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

export function nonEmptyLines(text: string): readonly string[] {
  return text.split('\n').flatMap((line) => line.trim() || [])
}

interface SendProps {
  readonly run: Run
  readonly label: string
  readonly isReady: boolean
}

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

/** Reason why the request of a form waits, and the error of its last request. */
export function RunProblem({ run }: { readonly run: Run }) {
  const { message = '', fix = '' } = run.problem.value ?? {}
  return (
    <>
      {run.waitsFor.value && (
        <p class="dim" role="status">
          {run.waitsFor.value}
        </p>
      )}
      <ErrorText text={[message, fix].filter(Boolean).join(' ')} />
    </>
  )
}

/** Shows code that repeats the last request, in three languages. Empty without a request. */
export function Code({ calls }: { readonly calls: readonly Call[] }) {
  const language = useSignal<Language>('curl')
  const chosen = useSignal('')
  const call = calls.find(({ name }) => name === chosen.value) ?? calls[0]
  if (!call) return null
  const code = codeOf(language.value, call, location.origin)
  return (
    <div class="card code">
      <div class="title">
        <h2>Code for this request</h2>
        {calls.length > 1 && (
          <Chips
            label="Call"
            all={calls.map(({ name }) => name)}
            chosen={call.name}
            onChoose={(name) => {
              chosen.value = name
            }}
          />
        )}
        <Chips
          label="Language"
          all={LANGUAGES}
          chosen={language.value}
          onChoose={(one) => {
            language.value = one
          }}
        />
        <CopyButton text={code} label="Copy" />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard. */}
      <pre class="output" tabIndex={0}>
        {code}
      </pre>
    </div>
  )
}

interface ChipsProps<One extends string> {
  readonly label: string
  readonly all: readonly One[]
  readonly chosen: string
  readonly onChoose: (one: One) => void
}

function Chips<One extends string>({ label, all, chosen, onChoose }: ChipsProps<One>) {
  return (
    <fieldset class="chips" aria-label={label}>
      {all.map((one) => (
        <button type="button" key={one} class="chip" aria-pressed={chosen === one} onClick={() => onChoose(one)}>
          {one}
        </button>
      ))}
    </fieldset>
  )
}

interface ModelChoiceProps {
  readonly capability: string
  readonly model: Signal<string>
  readonly label?: string
}

export function ModelChoice({ capability, model, label = 'Model' }: ModelChoiceProps) {
  return (
    <label>
      <span>{label}</span>
      <select
        value={model.value}
        onChange={({ currentTarget }) => {
          model.value = currentTarget.value
        }}
      >
        {modelsFor(capability).map(({ id }) => (
          <option key={id}>{id}</option>
        ))}
      </select>
    </label>
  )
}

interface OptionsProps {
  readonly fields: readonly Field[]
  readonly values: Signal<Readonly<Record<string, string>>>
  readonly shown?: number
  readonly children?: ComponentChildren
}

/** Request options, generated from the schema of the endpoint. An empty field uses the default of the service. */
export function Options({ fields, values, shown = 4, children }: OptionsProps) {
  const more = fields.slice(shown)
  return (
    <aside class="card options" aria-label="Options">
      {children}
      {fields.slice(0, shown).map((field) => (
        <Option key={field.name} field={field} values={values} />
      ))}
      {more.length > 0 && (
        <details>
          <summary>More options</summary>
          <div class="options">
            {more.map((field) => (
              <Option key={field.name} field={field} values={values} />
            ))}
          </div>
        </details>
      )}
    </aside>
  )
}

function Option({ field, values }: { readonly field: Field; readonly values: OptionsProps['values'] }) {
  const { name, label, hint } = field
  const id = useId()
  const change = ({ currentTarget }: { currentTarget: { value: string } }) => {
    values.value = { ...values.value, [name]: currentTarget.value }
  }
  return (
    <div>
      {/* biome-ignore lint/a11y/noLabelWithoutControl: the label contains the input that Control renders. */}
      <label>
        <span>{label}</span>
        <Control field={field} value={values.value[name] ?? ''} hintId={hint ? id : undefined} onChange={change} />
      </label>
      {hint && (
        <small id={id} class="dim">
          {hint}
        </small>
      )}
    </div>
  )
}

interface ControlProps {
  readonly field: Field
  readonly value: string
  readonly hintId: string | undefined
  readonly onChange: (event: { currentTarget: { value: string } }) => void
}

function Control({ field: { kind, min, max, step, choices }, value, hintId, onChange }: ControlProps) {
  const range = min !== undefined && max !== undefined ? `${min} to ${max}` : 'default'
  if (kind === 'number') {
    const bounds = { min, max, step }
    return (
      <input type="number" {...bounds} value={value} placeholder={range} aria-describedby={hintId} onInput={onChange} />
    )
  }
  if (kind === 'text') return <input value={value} placeholder="default" aria-describedby={hintId} onInput={onChange} />
  return (
    <select value={value} aria-describedby={hintId} onChange={onChange}>
      <option value="">default</option>
      {(kind === 'switch' ? ['true', 'false'] : choices).map((choice) => (
        <option key={choice}>{choice}</option>
      ))}
    </select>
  )
}
