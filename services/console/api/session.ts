import { computed, signal } from '@preact/signals'
import type { OwnKey } from './types.ts'

/** Where the key lies: in this tab, until it is closed. */
const KEY = 'sluice-key'

/** The key that this tab uses; empty: nobody has signed in. */
export const apiKey = signal(sessionStorage.getItem(KEY) ?? '')
/** Whether the key opens the operator's door; undefined while that is not known. */
export const isOperator = signal<boolean | undefined>(undefined)
/** What the key is and may do; undefined while that is not known. */
export const ownKey = signal<OwnKey | undefined>(undefined)
/** Whether the key may call models; undefined while that is not known. */
export const mayCall = computed(() => ownKey.value?.scopes.includes('calls'))
/** Why the console asks for a key again. */
export const refusal = signal('')

/** Whether there is a key. */
export const isSignedIn = computed(() => apiKey.value !== '')

/** Uses a key that was found to be valid. */
export function signIn(key: string, own: OwnKey): void {
  sessionStorage.setItem(KEY, key)
  know(own)
  refusal.value = ''
  apiKey.value = key
}

/** Takes what was found of the key. */
export function know(own: OwnKey): void {
  ownKey.value = own
  isOperator.value = own.scopes.includes('admin')
}

/** Forgets the key. @param why What the sign-in page says */
export function signOut(why = ''): void {
  sessionStorage.removeItem(KEY)
  refusal.value = why
  isOperator.value = undefined
  ownKey.value = undefined
  apiKey.value = ''
}
