import { useSignal } from '@preact/signals'
import { CopyButton } from '#services/console/parts/copy-button.tsx'
import { type Call, codeOf, LANGUAGES, type Language } from './call.ts'

/** Code that repeats the last request, in three languages; nothing before the first request. */
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
