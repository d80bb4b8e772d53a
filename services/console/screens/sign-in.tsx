import { useSignal } from '@preact/signals'
import { messageOf, trySignIn } from '#services/console/api/client.ts'
import { signInError } from '#services/console/api/session.ts'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { Icon } from '#services/console/parts/icon.tsx'

export function SignIn() {
  const key = useSignal('')
  const isBusy = useSignal(false)
  const send = async (event: Event) => {
    event.preventDefault()
    isBusy.value = true
    await trySignIn(key.value.trim()).catch((error: unknown) => {
      signInError.value = messageOf(error)
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
          The console shows the jobs of the key’s project or, with the <code>admin</code> scope, of all projects. The
          key is stored in this tab only.
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
        <ErrorText text={signInError.value} />
        <button type="submit" class="primary" disabled={isBusy.value}>
          {isBusy.value ? 'Signing in…' : 'Sign in'}
        </button>
        <details>
          <summary>Where do I get a key?</summary>
          <p>
            The service prints a key at its first start. To create one with full access, run{' '}
            <code>npx sluice keys create --scopes calls,admin</code> on the server.
          </p>
        </details>
        <p>
          <a href="/docs">API reference</a>
        </p>
      </form>
    </main>
  )
}
