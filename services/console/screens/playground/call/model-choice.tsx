import type { Signal } from '@preact/signals'
import { modelsFor } from '#services/console/screens/playground/catalog.ts'

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
