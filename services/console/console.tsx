import { effect, signal, useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { isOperator, isSignedIn, loadOwnKey, messageOf, ownKey, signInError, signOut, trySignIn } from './api/client.ts'
import { keyName, loadNames, projectName } from './api/names.ts'
import { ErrorText, Icon, type IconName, Toasts, usePoll } from './parts/parts.tsx'
import { BASE, currentUrl } from './parts/router.ts'
import { Empty } from './parts/states.tsx'
import { Audit } from './screens/audit.tsx'
import { BatchScreen } from './screens/batches/batch.tsx'
import { Batches } from './screens/batches/batches.tsx'
import { DeadLetters } from './screens/dead-letters.tsx'
import { Home } from './screens/home/home.tsx'
import { JobScreen } from './screens/job/job.tsx'
import { Jobs } from './screens/jobs/jobs.tsx'
import { Keys } from './screens/keys/keys.tsx'
import { Models } from './screens/models/models.tsx'
import { Playground } from './screens/playground/playground.tsx'
import { Pools } from './screens/pools.tsx'
import { RequestScreen } from './screens/requests/request.tsx'
import { Requests } from './screens/requests/requests.tsx'
import { Usage } from './screens/usage/usage.tsx'
import { Webhooks } from './screens/webhooks.tsx'
import { Workers } from './screens/workers.tsx'

const NAMES_REFRESH_INTERVAL_MS = 60_000
const MENU: Readonly<Record<string, readonly MenuEntry[]>> = {
  Observe: [
    { path: BASE, name: 'Home', icon: 'home' },
    { path: `${BASE}/requests`, name: 'Requests', icon: 'requests' },
    { path: `${BASE}/jobs`, name: 'Jobs', icon: 'jobs' },
    { path: `${BASE}/batches`, name: 'Batches', icon: 'batches' },
    { path: `${BASE}/usage`, name: 'Usage', icon: 'usage' },
  ],
  Build: [
    { path: `${BASE}/playground`, name: 'Playground', icon: 'play' },
    { path: `${BASE}/models`, name: 'Models', icon: 'models' },
  ],
  Operate: [
    { path: `${BASE}/pools`, name: 'Pools', icon: 'pools', isForOperators: true },
    { path: `${BASE}/workers`, name: 'Workers', icon: 'workers', isForOperators: true },
    { path: `${BASE}/dead-letters`, name: 'Dead letters', icon: 'letters', isForOperators: true },
    { path: `${BASE}/webhooks`, name: 'Webhooks', icon: 'hook', isForOperators: true },
  ],
  Settings: [
    { path: `${BASE}/keys`, name: 'Keys and projects', icon: 'keys', isForOperators: true },
    { path: `${BASE}/audit`, name: 'Audit log', icon: 'audit', isForOperators: true },
  ],
}

interface MenuEntry {
  readonly path: string
  readonly name: string
  readonly icon: IconName
  readonly isForOperators?: boolean
}

export function Console() {
  useTitle()
  if (!isSignedIn.value) return <SignIn />
  return <SignedIn />
}

function SignedIn() {
  useEffect(() => void loadOwnKey(), [])
  usePoll(NAMES_REFRESH_INTERVAL_MS, loadNames, [isOperator.value])
  return (
    <div class="console">
      <Menu />
      <main id="main" tabIndex={-1}>
        <Screen />
      </main>
      <Toasts />
    </div>
  )
}

/** Shows the screen, and the id of an object page, in the title of the browser tab. */
function useTitle(): void {
  const path = currentUrl.value.pathname.replace(/\/$/, '')
  const entry = Object.values(MENU)
    .flat()
    .find((one) => path === one.path || (one.path !== BASE && path.startsWith(`${one.path}/`)))
  const id = entry ? path.slice(entry.path.length + 1) : ''
  const name = isSignedIn.value ? (entry?.name ?? 'Page not found') : 'Sign in'
  const title = [isSignedIn.value && id, name, 'Sluice'].filter(Boolean).join(' · ')
  useEffect(() => {
    document.title = title
  }, [title])
}

/** In a narrow window, the menu is closed, and a button in the header of the site opens it. */
function Menu() {
  const isOpen = useSignal(false)
  useEffect(() => {
    const onKey = ({ key }: KeyboardEvent) => {
      if (key === 'Escape') isOpen.value = false
    }
    addEventListener('keydown', onKey)
    return () => removeEventListener('keydown', onKey)
  }, [isOpen])
  const close = () => {
    isOpen.value = false
  }
  // Closes the menu when another screen opens, because links outside the menu open screens too.
  useEffect(close, [currentUrl.value.pathname])
  return (
    <>
      <button
        type="button"
        class="menu-toggle"
        aria-label={isOpen.value ? 'Close' : 'Menu'}
        aria-expanded={isOpen.value}
        aria-controls="menu"
        onClick={() => {
          isOpen.value = !isOpen.value
        }}
      >
        <Icon name={isOpen.value ? 'close' : 'menu'} />
      </button>
      <aside id="menu" class={isOpen.value ? 'menu open' : 'menu'} aria-label="Menu">
        <nav aria-label="Screens">
          {Object.entries(MENU).map(([group, entries]) => (
            <MenuGroup key={group} name={group} entries={entries} onOpen={close} />
          ))}
        </nav>
        <div class="menu-end">
          <Account />
          <button type="button" class="quiet" onClick={nextTheme}>
            <Icon name={theme.value === 'dark' ? 'moon' : theme.value === 'light' ? 'sun' : 'half'} />
            Theme: {theme.value}
          </button>
          <button type="button" class="quiet" onClick={() => signOut()}>
            <Icon name="leave" /> Sign out
          </button>
        </div>
      </aside>
    </>
  )
}

interface MenuGroupProps {
  readonly name: string
  readonly entries: readonly MenuEntry[]
  readonly onOpen: () => void
}

function MenuGroup({ name: group, entries, onOpen }: MenuGroupProps) {
  const path = currentUrl.value.pathname.replace(/\/$/, '')
  const isHere = (one: string) => (one === BASE ? path === BASE : path === one || path.startsWith(`${one}/`))
  const shown = entries.filter(({ isForOperators }) => !isForOperators || isOperator.value)
  if (shown.length === 0) return null
  return (
    <div>
      <p class="dim">{group}</p>
      {shown.map(({ path: to, name, icon }) => (
        <a key={to} href={to} aria-current={isHere(to) ? 'page' : undefined} onClick={onOpen}>
          <Icon name={icon} />
          <span>{name}</span>
        </a>
      ))}
    </div>
  )
}

function Account() {
  const own = ownKey.value
  if (!own) return null
  const [key, project] = [keyName(own.id), projectName(own.project)]
  return (
    <p class="account">
      <strong>{key}</strong>
      <span class="dim">
        {!own.scopes.includes('admin') ? `Project ${project}` : project === key ? 'Admin' : `Admin, project ${project}`}
      </span>
    </p>
  )
}

function Screen() {
  const path = currentUrl.value.pathname.replace(/\/$/, '')
  const [, id] = /^\/console\/jobs\/([\w-]+)$/.exec(path) ?? []
  const [, batchId] = /^\/console\/batches\/(batch_[\w-]+)$/.exec(path) ?? []
  if (batchId) return <BatchScreen key={batchId} id={batchId} />
  if (path === `${BASE}/batches`) return <Batches />
  if (id) return <JobScreen key={id} id={id} />
  const [, request] = /^\/console\/requests\/([\w-]+)$/.exec(path) ?? []
  if (request) return <RequestScreen key={request} id={request} />
  if (path === `${BASE}/requests`) return <Requests />
  if (path === `${BASE}/jobs`) return <Jobs />
  if (path === `${BASE}/playground`) return <Playground />
  if (path === `${BASE}/usage`) return <Usage />
  if (path === `${BASE}/models`) return <Models />
  if (path === `${BASE}/pools`) return <Pools />
  if (path === `${BASE}/audit`) return <Audit />
  if (path === `${BASE}/workers`) return <Workers />
  if (path === `${BASE}/dead-letters`) return <DeadLetters />
  if (path === `${BASE}/webhooks`) return <Webhooks />
  if (path === `${BASE}/keys`) return <Keys />
  if (path === BASE) return <Home />
  return (
    <Empty
      title="Page not found"
      action={
        <a class="button" href={BASE}>
          Open Home
        </a>
      }
    >
      The address may have a typing error, or the page may be of another version of the console.
    </Empty>
  )
}

const KEY = 'sluice-theme'
const THEMES = ['system', 'light', 'dark'] as const

type Theme = (typeof THEMES)[number]

const theme = signal<Theme>(THEMES.find((one) => one === localStorage.getItem(KEY)) ?? 'system')

effect(() => {
  localStorage.setItem(KEY, theme.value)
  document.documentElement.dataset.theme = theme.value
})

function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? 'system'
}

function SignIn() {
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
    <main class="sign-in" id="main" tabIndex={-1}>
      <form class="card" onSubmit={(event) => void send(event)}>
        <h1>Sign in with an API key</h1>
        <p class="dim">
          The console shows the jobs of the key’s project or, with the <code>admin</code> scope, of all projects. The
          key is stored in this tab only. New tabs of the console receive it from this tab while it is open.
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
      </form>
    </main>
  )
}
