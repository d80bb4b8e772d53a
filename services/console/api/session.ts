import { computed, signal } from '@preact/signals'
import type { OwnKey } from './types.ts'

const KEY = 'sluice-key'

/** The API key of this tab, or an empty string before sign-in. Session storage keeps it until the tab is closed. */
export const apiKey = signal(sessionStorage.getItem(KEY) ?? '')
/** Whether the key has the `admin` scope; undefined until loaded. */
export const isOperator = signal<boolean | undefined>(undefined)
/** Scopes and limits of the key; undefined until loaded. */
export const ownKey = signal<OwnKey | undefined>(undefined)
/** Whether the key has the `calls` scope; undefined until loaded. */
export const canCall = computed(() => ownKey.value?.scopes.includes('calls'))
export const signInError = signal('')

export const isSignedIn = computed(() => apiKey.value !== '')

export function signIn(key: string, own: OwnKey): void {
  sessionStorage.setItem(KEY, key)
  setOwnKey(own)
  signInError.value = ''
  apiKey.value = key
}

export function setOwnKey(own: OwnKey): void {
  ownKey.value = own
  isOperator.value = own.scopes.includes('admin')
}

/** @param why Error text for the sign-in form */
export function signOut(why = ''): void {
  sessionStorage.removeItem(KEY)
  signInError.value = why
  isOperator.value = undefined
  ownKey.value = undefined
  apiKey.value = ''
}
