import { useSignal } from '@preact/signals'
import { trySignIn, wordsOf } from '#services/console/api/client.ts'
import { refusal } from '#services/console/api/session.ts'
import { Icon } from '#services/console/parts/icon.tsx'

/** Asks for a key, and tries it. */
export function SignIn() {
  const key = useSignal('')
  const isBusy = useSignal(false)
  const send = async (event: Event) => {
    event.preventDefault()
    isBusy.value = true
    await trySignIn(key.value.trim()).catch((error: unknown) => {
      refusal.value = wordsOf(error)
    })
    isBusy.value = false
  }
  return (
    <main class="sign-in">
      <form class="card" onSubmit={(event) => void send(event)}>
        <div class="brand">
          <Icon name="brand" />
          <span>Sluice</span>
        </div>
        <h1>Sign in with an API key</h1>
        <p class="dim">
          You see what the key may see: the jobs of its project, and with the scope <code>admin</code> those of all. The
          key stays in this tab.
        </p>
        <label for="key">API key</label>
        <input
          id="key"
          type="password"
          autocomplete="off"
          placeholder="sk-…"
          required
          value={key.value}
          onInput={({ currentTarget }) => {
            key.value = currentTarget.value
          }}
        />
        {refusal.value && (
          <p class="refusal" role="alert">
            {refusal.value}
          </p>
        )}
        <button type="submit" class="primary" disabled={isBusy.value}>
          {isBusy.value ? 'Trying…' : 'Sign in'}
        </button>
        <details>
          <summary>Where do I get a key?</summary>
          <p>
            The first start of the service prints one. Where it runs,{' '}
            <code>npx sluice keys create --scopes calls,admin</code> makes another that sees everything.
          </p>
        </details>
        <p>
          <a href="/docs">API reference</a>
        </p>
      </form>
    </main>
  )
}
