import { chat } from './chat.ts'

/** What the next call asks for beside its words. */
export function Options() {
  const { models, model, system, maxTokens, temperature } = chat
  return (
    <aside class="card options" aria-label="Options">
      <label>
        <span>Model</span>
        <select
          value={model.value}
          onChange={({ currentTarget }) => {
            model.value = currentTarget.value
          }}
        >
          {models.value.map(({ id }) => (
            <option key={id}>{id}</option>
          ))}
        </select>
      </label>
      <label>
        <span>System</span>
        <textarea
          rows={4}
          placeholder="How it shall answer"
          value={system.value}
          onInput={({ currentTarget }) => {
            system.value = currentTarget.value
          }}
        />
      </label>
      <label>
        <span>Most tokens</span>
        <input
          type="number"
          min={1}
          max={100_000}
          value={maxTokens.value}
          onChange={({ currentTarget }) => {
            maxTokens.value = Math.max(1, Math.floor(currentTarget.valueAsNumber || 1))
          }}
        />
      </label>
      <label>
        <span>Temperature</span>
        <input
          type="number"
          min={0}
          max={2}
          step={0.1}
          placeholder="as the model does"
          value={temperature.value}
          onChange={({ currentTarget }) => {
            temperature.value = currentTarget.value
          }}
        />
      </label>
    </aside>
  )
}
