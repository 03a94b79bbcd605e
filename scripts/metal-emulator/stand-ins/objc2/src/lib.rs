//! Stand-in for objc2: reference counting and one protocol object, no Objective-C.
pub mod rc {
    use std::{cell::Cell, fmt, hash, marker::PhantomData, ops::Deref, sync::Arc};
    thread_local! { static POOLS: Cell<usize> = const { Cell::new(0) }; }
    /// An autorelease pool of this thread.
    #[derive(Debug, Clone, Copy)]
    pub struct AutoreleasePool<'pool>(PhantomData<(&'pool (), *mut ())>);
    /// Runs `f` inside of an autorelease pool, which is only counted here.
    pub fn autoreleasepool<T, F>(f: F) -> T
    where
        F: for<'pool> FnOnce(AutoreleasePool<'pool>) -> T,
    {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                POOLS.set(POOLS.get() - 1);
            }
        }
        POOLS.set(POOLS.get() + 1);
        let _leave = Leave;
        f(AutoreleasePool(PhantomData))
    }
    /// How many pools this thread is in.
    pub fn pool_depth() -> usize {
        POOLS.get()
    }
    pub struct Retained<T: ?Sized>(Arc<T>);
    impl<T> Retained<T> {
        pub fn from_value(value: T) -> Self {
            Retained(Arc::new(value))
        }
    }
    impl<T: ?Sized> Retained<T> {
        pub fn as_ptr(this: &Self) -> *const T {
            Arc::as_ptr(&this.0)
        }
        /// One more reference to something that lies in a `Retained`.
        /// # Safety
        /// `object` must come from a `Retained`.
        pub unsafe fn again(object: &T) -> Self
        where
            T: Sized,
        {
            Arc::increment_strong_count(object);
            Retained(Arc::from_raw(object))
        }
    }
    impl<T: ?Sized> Clone for Retained<T> {
        fn clone(&self) -> Self {
            Retained(self.0.clone())
        }
    }
    impl<T: ?Sized> Deref for Retained<T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.0
        }
    }
    impl<T: ?Sized> fmt::Debug for Retained<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Retained({:p})", Arc::as_ptr(&self.0))
        }
    }
    impl<T: ?Sized> PartialEq for Retained<T> {
        fn eq(&self, o: &Self) -> bool {
            Arc::ptr_eq(&self.0, &o.0)
        }
    }
    impl<T: ?Sized> Eq for Retained<T> {}
    impl<T: ?Sized> hash::Hash for Retained<T> {
        fn hash<H: hash::Hasher>(&self, h: &mut H) {
            (Arc::as_ptr(&self.0) as *const u8 as usize).hash(h)
        }
    }
}
pub mod runtime {
    use std::{any::Any, fmt, marker::PhantomData};
    pub struct AnyObject(());
    static ANY: AnyObject = AnyObject(());
    pub struct AnyClass(());
    static CLASS: AnyClass = AnyClass(());
    impl AnyClass {
        /// Every class exists, but those that macOS has only since version 15 where `EMU_MACOS` names an older one.
        pub fn get(name: &std::ffi::CStr) -> Option<&'static Self> {
            let version = std::env::var("EMU_MACOS").ok().and_then(|version| version.parse().ok()).unwrap_or(15);
            (version >= 15 || !name.to_bytes().starts_with(b"MTLResidencySet")).then_some(&CLASS)
        }
    }
    /// What a message answers.
    /// # Safety
    /// None is needed here; a message to Objective-C needs some.
    pub unsafe fn any() -> *const AnyObject {
        &ANY
    }
    /// Thin, whatever the protocol: the cast in candle's `as_allocation` needs that.
    #[repr(C)]
    pub struct ProtocolObject<P: ?Sized> {
        state: Box<dyn Any + Send + Sync>,
        protocol: PhantomData<*const P>,
    }
    unsafe impl<P: ?Sized> Send for ProtocolObject<P> {}
    unsafe impl<P: ?Sized> Sync for ProtocolObject<P> {}
    impl<P: ?Sized> ProtocolObject<P> {
        pub fn emulate<T: Send + Sync + 'static>(state: T) -> crate::rc::Retained<Self> {
            crate::rc::Retained::from_value(ProtocolObject { state: Box::new(state), protocol: PhantomData })
        }
        pub fn state<T: 'static>(&self) -> &T {
            self.state.downcast_ref().expect("an object of another protocol")
        }
        pub fn from_ref<Q: ?Sized>(other: &ProtocolObject<Q>) -> &Self {
            unsafe { &*(other as *const ProtocolObject<Q> as *const Self) }
        }
    }
    impl<P: ?Sized> fmt::Debug for ProtocolObject<P> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "ProtocolObject({self:p})")
        }
    }
}
#[macro_export]
macro_rules! msg_send {
    ($object:expr, architecture) => {{
        let _ = $object;
        $crate::runtime::any()
    }};
}
#[macro_export]
macro_rules! available {
    ($($t:tt)*) => {
        true
    };
}
